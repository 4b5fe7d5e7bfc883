// cat, stack, pad.
#include "gradcheck_helper.h"
#include "quern/ops/cat.h"
#include "quern/ops/pad.h"
#include "quern/tensor/cpu_features.h"

using namespace quern;
using namespace quern::test;
using Values = std::vector<double>;

namespace {

Values values(const Tensor& t) { return t.to_vector<double>(); }

}  // namespace

TEST_CASE("cat") {
  const Tensor a = from_vector<double>({1, 2, 3, 4}, {2, 2}),
               b = from_vector<double>({5, 6}, {2, 1});
  CHECK(values(cat({a, b}, 1)) == Values{1, 2, 5, 3, 4, 6});
  CHECK(values(cat({a, a}, -2)) == Values{1, 2, 3, 4, 1, 2, 3, 4});
  CHECK(values(cat({a})) == values(a));
  CHECK(cat({zeros({0, 2}), zeros({3, 2})}).shape() == Shape{3, 2});
  CHECK(cat({zeros({2, 0}), zeros({3, 0})}).shape() == Shape{5, 0});
}

TEST_CASE("cat takes the widest dtype, and keeps the format") {
  const Tensor i = ones({2}, DType::i64), f = full({2}, 0.5, DType::bf16);
  CHECK(cat({i, i}).dtype() == DType::i64);
  CHECK(cat({i, f}).dtype() == DType::bf16);
  CHECK(values(cat({i, f})) == Values{1, 1, 0.5, 0.5});
  const Tensor x = random({2, 3, 4, 5}, 1, DType::f32, MemoryFormat::channels_last);
  for (int64_t dim = 0; dim < 4; ++dim) {
    const Tensor y = cat({x, x}, dim);
    CHECK(y.is_dense_as(MemoryFormat::channels_last));
    CHECK(same_bits(y, cat({raw::contiguous(x), raw::contiguous(x)}, dim)));
  }
}

TEST_CASE("cat of dense parts is cat of views") {
  for (const MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last})
    for (const DType dtype : {DType::f32, DType::bf16})
      for (int64_t dim = 0; dim < 4; ++dim) {
        Tensors views, parts;
        for (const int64_t size : {3, 0, 17}) {
          const Shape shape{4, 6, 9, 11};
          Shape own = shape, wide = shape;
          own[static_cast<int>(dim)] = size;
          wide[static_cast<int>(dim)] = size + 2;
          views.push_back(raw::slice(random(wide, 1, dtype, format), dim, 1, size + 1));
          parts.push_back(raw::contiguous(views.back(), format));
          CHECK_EQ(parts.back().shape(), own);
        }
        CHECK(same_bits(cat(parts, dim), cat(views, dim)));
      }
}

TEST_CASE("cat past the caches") {
  const int64_t rows = cache_sizes().l3 / 2 / (48 * 4) + 1;
  const Tensor a = random({rows, 16}, 1, DType::f32), b = random({rows, 32}, 2, DType::f32);
  const Tensor y = cat({a, b}, 1);
  CHECK(same_bits(raw::contiguous(raw::slice(y, 1, 0, 16)), a));
  CHECK(same_bits(raw::contiguous(raw::slice(y, 1, 16, 48)), b));
}

TEST_CASE("stack") {
  const Tensor a = from_vector<double>({1, 2}), b = from_vector<double>({3, 4});
  CHECK(values(stack({a, b})) == Values{1, 2, 3, 4});
  CHECK(values(stack({a, b}, 1)) == Values{1, 3, 2, 4});
  CHECK(values(stack({a, b}, -1)) == Values{1, 3, 2, 4});
  CHECK(stack({zeros({}), zeros({})}).shape() == Shape{2});
  CHECK(stack({a, ones({2}, DType::f32)}).dtype() == DType::f64);
}

TEST_CASE("pad") {
  const Tensor x = from_vector<double>({1, 2, 3, 4}, {2, 2});
  CHECK(values(pad(x, {1, 0}, 7)) == Values{7, 1, 2, 7, 3, 4});
  CHECK(values(pad(x, {0, 1, 1, 0})) == Values{0, 0, 0, 1, 2, 0, 3, 4, 0});
  CHECK(values(pad(x, {})) == values(x));
  CHECK(pad(ones({2}, DType::i64), {1, 1}, 3).dtype() == DType::i64);
  CHECK(values(pad(zeros({0}), {1, 1}, 3)) == Values{3, 3});
  CHECK(pad(empty({1, 2, 3, 4}, DType::f32, MemoryFormat::channels_last), {1, 1})
            .is_dense_as(MemoryFormat::channels_last));
}

TEST_CASE("pad is a fill and a copy into it, whatever is padded") {
  const std::vector<std::vector<int64_t>> paddings{{},
                                                   {1, 2},
                                                   {0, 0, 3, 0},
                                                   {1, 1, 1, 1},
                                                   {0, 0, 0, 0, 2, 1},
                                                   {0, 3, 1, 0, 0, 2, 1, 1},
                                                   {0, 0, 0, 0, 0, 0, 0, 1}};
  for (const Shape& shape : {Shape{2, 3, 5, 4}, Shape{3, 17, 9, 70}, Shape{1, 80, 2, 3}})
    for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last})
      for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::u8})
        for (const auto& padding : paddings) {
          const Tensor x = raw::to(random(shape, 1, DType::f32, format), dtype);
          Shape padded = shape;
          for (size_t i = 0; i < padding.size(); ++i)
            padded[3 - static_cast<int>(i / 2)] += padding[i];
          const Tensor y = full(padded, 7, dtype, format);
          Tensor inner = y;
          for (size_t i = 0; i < padding.size(); i += 2) {
            const int d = 3 - static_cast<int>(i / 2);
            inner = raw::slice(inner, d, padding[i], padding[i] + shape[d]);
          }
          raw::copy_(inner, x);
          CHECK(same_bits(pad(x, padding, 7), y));
          CHECK(same_bits(pad(strided(x), padding, 7), y));
        }
}

TEST_CASE("gradients of cat, stack and pad") {
  for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last})
    for (int64_t dim = 0; dim < 4; ++dim) {
      const Tensor a = leaf({2, 1, 3, 2}, 1, format), b = leaf({2, 1, 3, 2}, 2);
      check_gradients([=](const Tensors& in) { return cat(in, dim); }, {a, b, a});
      check_gradients([=](const Tensors& in) { return stack(in, dim); }, {a, b});
      check_gradients([](const Tensors& in) { return pad(in[0], {1, 0, 2, 1, 0, 1}, 3); }, {a});
    }
  check_gradients(
      [](const Tensors& in) { return cat(in, 1); },
      {leaf({2, 3}, 1), random({2, 1}, 2), strided(random({2, 4}, 3)).requires_grad_()});
  check_gradients([](const Tensors& in) { return stack(in); }, {leaf({}, 1), leaf({}, 2)});
}

TEST_CASE("cat of mixed dtypes gives each input a gradient in its dtype") {
  const Tensor a = ones({2}, DType::bf16).requires_grad_(), b = ones({2}).requires_grad_();
  const Tensor dy = random({4}, 1, DType::f32);
  cat({a, b}).backward(dy);
  CHECK(same_bits(a.grad(), raw::to(raw::slice(dy, 0, 0, 2), DType::bf16)));
  CHECK(same_bits(b.grad(), raw::slice(dy, 0, 2, 4)));
}

TEST_CASE("what cat, stack and pad refuse") {
  const Tensor x = ones({2, 3});
  CHECK_THROWS_WITH_AS(cat({}), "[cat] tensors: expected at least one, got none", Error);
  CHECK_THROWS_WITH_AS(cat({x, Tensor()}),
                       "[cat] tensor 1: expected a defined tensor, got undefined", Error);
  CHECK_THROWS_WITH_AS(
      cat({x, ones({3, 3})}, 1),
      "[cat] tensor 1: expected the sizes of f32 [2,3] except along dimension 1, got "
      "f32 [3,3]",
      Error);
  CHECK_THROWS_AS(cat({x, ones({2})}, 1), Error);
  CHECK_THROWS_AS(cat({x, x}, 2), Error);
  CHECK_THROWS_WITH_AS(cat({ones({})}),
                       "[cat] tensor 0: expected at least one dimension, got f32 []", Error);
  CHECK_THROWS_WITH_AS(stack({}), "[stack] tensors: expected at least one, got none", Error);
  CHECK_THROWS_WITH_AS(stack({x, ones({3, 2})}),
                       "[stack] tensor 1: expected shape [2,3], got f32 [3,2]", Error);
  CHECK_THROWS_AS(stack({x}, 3), Error);
  CHECK_THROWS_WITH_AS(pad(x, {1}),
                       "[pad] padding: expected up to 2 pairs of sizes for f32 [2,3], got 1 sizes",
                       Error);
  CHECK_THROWS_AS(pad(x, {1, 1, 1, 1, 1, 1}), Error);
  CHECK_THROWS_WITH_AS(pad(x, {0, -1}),
                       "[pad] padding: expected sizes of 0..1152921504606846976, got -1", Error);
  CHECK_THROWS_AS(pad(x, {INT64_MAX, INT64_MAX}), Error);
  CHECK_THROWS_AS(pad(x, {int64_t{1} << 60, int64_t{1} << 60}), Error);
  CHECK_THROWS_AS(pad(Tensor(), {}), Error);
}
