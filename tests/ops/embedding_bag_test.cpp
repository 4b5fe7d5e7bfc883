#include "quern/ops/embedding_bag.h"

#include <cmath>

#include "gradcheck_helper.h"
#include "quern/tensor/parallel.h"
#include "tensor/threads.h"

using namespace quern;
using namespace quern::test;

namespace {

const Tensor kIndices = from_vector<int64_t>({3, 0, 3, 4, 1, 0, 2});
const Tensor kOffsets = from_vector<int64_t>({0, 3, 3, 5});  // bags of 3, 0, 2 and 2

}  // namespace

TEST_CASE("bags: sums, means and maxima in any dtype") {
  for (const DType dtype : {DType::bf16, DType::f32, DType::f64})
    for (const int64_t width : {1, 5, 70}) {
      const Tensor weight = random({5, width}, 1, dtype);
      const auto w = weight.to_vector<double>();
      const auto at = [&](int64_t row, int64_t c) {
        return w[static_cast<size_t>(row * width + c)];
      };
      const auto of = [&](BagMode mode) {
        return embedding_bag(kIndices, weight, kOffsets, {.mode = mode}).to_vector<double>();
      };
      const auto sums = of(BagMode::sum), means = of(BagMode::mean), maxima = of(BagMode::max);
      // Three terms below 1 in f32, one rounding to the dtype.
      const double bound = dtype == DType::bf16  ? 3 * 0x1p-8
                           : dtype == DType::f32 ? 4 * 0x1p-23
                                                 : 1e-15;
      for (int64_t c = 0; c < width; ++c) {
        const auto k = static_cast<size_t>(c), n = static_cast<size_t>(width);
        CHECK(std::abs(sums[k] - (2 * at(3, c) + at(0, c))) <= bound);
        CHECK(std::abs(means[k] - (2 * at(3, c) + at(0, c)) / 3) <= bound);
        CHECK(maxima[k] == std::max(at(3, c), at(0, c)));
        CHECK(sums[n + k] == 0);
        CHECK(means[n + k] == 0);
        CHECK(maxima[n + k] == 0);
        CHECK(std::abs(sums[3 * n + k] - (at(0, c) + at(2, c))) <= bound);
      }
      CHECK(same_bits(embedding_bag(strided(kIndices), strided(weight), strided(kOffsets)),
                      embedding_bag(kIndices, weight, kOffsets)));
    }
}

TEST_CASE("gradients of bags") {
  for (const BagMode mode : {BagMode::sum, BagMode::mean, BagMode::max})
    for (const bool sparse : {false, true}) {
      if (sparse && mode == BagMode::max) continue;
      const auto bag = [=](const Tensors& in) {
        return embedding_bag(in[0], in[1], in[2], {.mode = mode, .sparse = sparse});
      };
      check_gradients(bag, {kIndices, leaf({5, 3}, 1), kOffsets});
      check_gradients(bag, {kIndices, strided(random({5, 3}, 1)).requires_grad_(), kOffsets});
      const auto padded = [=](const Tensors& in) {
        return embedding_bag(in[0], in[1], in[2],
                             {.mode = mode, .padding_idx = -2, .sparse = sparse});
      };
      check_gradients(padded, {kIndices, leaf({5, 3}, 1), kOffsets});
    }
  const auto weighted = [](const Tensors& in) {
    return embedding_bag(in[0], in[1], in[2],
                         {.mode = BagMode::sum, .per_sample_weights = in[3], .padding_idx = 3});
  };
  check_gradients(weighted, {kIndices, leaf({5, 3}, 1), kOffsets, leaf({7}, 2)});
  const auto rows = [](const Tensors& in) {
    return embedding_bag(in[0], in[1], {}, {.mode = BagMode::sum, .per_sample_weights = in[2]});
  };
  check_gradients(rows, {raw::reshape(raw::slice(kIndices, 0, 0, 6), {2, 3}), leaf({5, 3}, 1),
                         leaf({2, 3}, 2)});
}

TEST_CASE("bags without indices, NaN and include_last_offset") {
  const Tensor weight = random({5, 3}, 1).requires_grad_();
  const Tensor none = zeros({0}, DType::i64);
  CHECK(embedding_bag(none, weight, none).shape() == Shape{0, 3});
  const Tensor empty_bags =
      embedding_bag(none, weight, from_vector<int64_t>({0, 0}), {.sparse = true});
  CHECK(same_bits(empty_bags, zeros({2, 3}, DType::f64)));
  empty_bags.backward(ones({2, 3}, DType::f64));
  CHECK(weight.grad().rows().numel() == 0);
  CHECK(same_bits(embedding_bag(kIndices, weight, from_vector<int64_t>({0, 3, 3, 5, 7}),
                                {.include_last_offset = true}),
                  embedding_bag(kIndices, weight, kOffsets)));
  const Tensor spoilt = from_vector<double>({1, NAN, 2}, {3, 1});
  const Tensor y = embedding_bag(from_vector<int64_t>({0, 1, 2, 2, 0}), spoilt,
                                 from_vector<int64_t>({0, 3}), {.mode = BagMode::max});
  CHECK(std::isnan(y.to_vector<double>()[0]));
  CHECK(y.to_vector<double>()[1] == 2);
}

TEST_CASE("bags have the same bits for any number of threads") {
  const test::Threads kept;
  const Tensor indices = randint(0, 300, {500, 9}), start = random({300, 33}, 1, DType::f32);
  const Tensor dy = random({500, 33}, 2, DType::f32);
  for (const BagMode mode : {BagMode::sum, BagMode::mean, BagMode::max}) {
    Tensors first;
    for (const int threads : {1, 2, 3}) {
      set_num_threads(threads);
      const Tensor weight = raw::clone(start).requires_grad_();
      const Tensor y = embedding_bag(indices, weight, {}, {.mode = mode});
      y.backward(dy);
      if (first.empty()) first = {y.detach(), weight.grad()};
      CHECK(same_bits(y, first[0]));
      CHECK(same_bits(weight.grad(), first[1]));
    }
  }
}

TEST_CASE("what embedding_bag refuses") {
  const Tensor weight = random({5, 3}, 1);
  const auto bag = [&](const Tensor& offsets, const EmbeddingBagOptions& options = {}) {
    return embedding_bag(kIndices, weight, offsets, options);
  };
  CHECK_THROWS_WITH_AS(bag({}),
                       "[embedding_bag] offsets: expected an i64 tensor [B], got undefined", Error);
  CHECK_THROWS_WITH_AS(bag(from_vector<int64_t>({1, 3})),
                       "[embedding_bag] offsets: expected 0..0, got 1 as element 0", Error);
  CHECK_THROWS_WITH_AS(bag(from_vector<int64_t>({0, 4, 3})),
                       "[embedding_bag] offsets: expected 4..7, got 3 as element 2", Error);
  CHECK_THROWS_WITH_AS(bag(from_vector<int64_t>({0, 8})),
                       "[embedding_bag] offsets: expected 0..7, got 8 as element 1", Error);
  CHECK_THROWS_WITH_AS(bag(from_vector<int64_t>({0, 3}), {.include_last_offset = true}),
                       "[embedding_bag] offsets: expected 7 as the last one, got i64 [2]", Error);
  CHECK_THROWS_WITH_AS(bag(kOffsets, {.per_sample_weights = zeros({7}, DType::f64)}),
                       "[embedding_bag] per_sample_weights: expected none but for sums", Error);
  CHECK_THROWS_WITH_AS(
      bag(kOffsets, {.mode = BagMode::sum, .per_sample_weights = zeros({6}, DType::f64)}),
      "[embedding_bag] per_sample_weights: expected f64 [7], got f64 [6]", Error);
  CHECK_THROWS_AS(bag(kOffsets, {.mode = BagMode::max, .sparse = true}), Error);
  CHECK_THROWS_AS(bag(kOffsets, {.mode = BagMode::max, .scale_grad_by_freq = true}), Error);
  CHECK_THROWS_WITH_AS(embedding_bag(from_vector<int64_t>({5}), weight, zeros({1}, DType::i64)),
                       "[embedding_bag] indices: expected 0..4, got 5 as element 0", Error);
  CHECK_THROWS_AS(embedding_bag(zeros({1, 1, 1}, DType::i64), weight), Error);
  CHECK_THROWS_AS(embedding_bag(zeros({2, 2}, DType::i64), weight, kOffsets), Error);
}
