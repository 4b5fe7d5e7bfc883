#include "quern/ops/pack_cache.h"
#include "quern/ops/detail/packed_copy.h"

#include <doctest/doctest.h>
#include <fmt/core.h>

#include <array>
#include <span>
#include <thread>
#include <vector>

#include "quern/autograd/grad_mode.h"
#include "quern/autograd/node.h"
#include "quern/ops/binary.h"
#include "quern/ops/conv2d.h"
#include "quern/ops/convert.h"
#include "quern/ops/kernels/gemm/micro_kernel.h"
#include "quern/ops/sum.h"
#include "quern/tensor/random.h"
#include "quern/tensor/raw.h"
#include "tensor/run_self.h"

using namespace quern;

namespace {

constexpr int64_t kBytes = 64;

/// Asks for a copy whose first byte is `mark`; says what came and whether it was made now.
struct Asked {
  int mark;
  bool made;
  bool operator==(const Asked&) const = default;
};
Asked ask(const Tensor& weight, int mark, std::string_view layout = "test",
          const detail::PackingParameters& parameters = {}, std::span<const Tensor> with = {}) {
  bool made = false;
  const auto copy = detail::packed_copy(
      weight, layout, *kernels::table<kernels::GemmKernel>()[0], kBytes,
      [&](void* to) {
        *static_cast<char*>(to) = static_cast<char>(mark);
        made = true;
      },
      parameters, with);
  return {static_cast<int>(copy->data()[0]), made};
}

struct Fresh {
  Fresh() { clear_pack_cache(); }
  ~Fresh() {
    clear_pack_cache();
    set_pack_cache_limits(kPackCacheCapacity, kPackCacheBytes);
  }
};

}  // namespace

TEST_CASE("a packed copy is kept from the second time, until the weight changes") {
  const Fresh fresh;
  const Tensor weight = zeros({4});
  CHECK(ask(weight, 1) == Asked{1, true});
  CHECK(pack_cache_stats().entries == 0);
  CHECK(ask(weight, 2) == Asked{2, true});
  CHECK(ask(weight, 3) == Asked{2, false});
  CHECK(pack_cache_stats().entries == 1);
  CHECK(pack_cache_stats().bytes >= kBytes);
  raw::fill_(weight, 1);
  CHECK(ask(weight, 4) == Asked{4, true});
  CHECK(pack_cache_stats().entries == 0);  // the stale one is gone
  CHECK(ask(weight, 5) == Asked{5, true});
  CHECK(ask(weight, 6) == Asked{5, false});
  CHECK(pack_cache_stats().hits == 2);
  CHECK(pack_cache_stats().misses == 4);
}

TEST_CASE("a packed copy is kept at once where no gradients are recorded") {
  const Fresh fresh;
  const NoGradGuard no_grad;
  const Tensor weight = zeros({4});
  CHECK(ask(weight, 1) == Asked{1, true});
  CHECK(ask(weight, 2) == Asked{1, false});
  raw::fill_(weight, 1);
  CHECK(ask(weight, 3) == Asked{3, true});
  CHECK(ask(weight, 4) == Asked{3, false});
  CHECK(pack_cache_stats().entries == 1);
}

TEST_CASE("a backward pass keeps no packed copy at once") {
  const Fresh fresh;
  const Tensor x = zeros({4}).requires_grad_(), weight = zeros({4});
  const Tensor y = record("op", raw::alias(x), {x}, [&](const Tensor& dy, Needs) -> Tensors {
    CHECK(ask(weight, 1) == Asked{1, true});
    return {dy};
  });
  y.backward(ones_like(y));
  CHECK(pack_cache_stats().entries == 0);
}

TEST_CASE("copies of different layouts, parameters and views are different") {
  const Fresh fresh;
  const Tensor weight = zeros({4, 4});
  for (int round = 0; round < 3; ++round) {
    const bool made = round < 2;
    const auto expect = [&](int mark) { return Asked{made ? 10 * round + mark : 10 + mark, made}; };
    CHECK(ask(weight, 10 * round + 1) == expect(1));
    CHECK(ask(weight, 10 * round + 2, "other") == expect(2));
    CHECK(ask(weight, 10 * round + 3, "test", {7}) == expect(3));
    CHECK(ask(raw::transpose(weight, 0, 1), 10 * round + 4) == expect(4));
    CHECK(ask(raw::slice(weight, 0, 1, 3), 10 * round + 5) == expect(5));
  }
  CHECK(ask(raw::alias(weight), 0) == Asked{11, false});
}

TEST_CASE("convolutions of any geometry may share a weight") {
  struct Geometry {
    Pair stride, padding, dilation;
  };
  const Geometry geometries[] = {{1, 1, 1},
                                 {2, 1, 1},
                                 {3, 0, 1},
                                 {1, 2, 2},
                                 {{2, 1}, {0, 2}, {1, 2}},
                                 {{1, 3}, {2, 1}, {2, 1}}};
  struct Filters {
    int64_t groups, in, out;  // channels of a group
  };
  for (const auto& [groups, in, out] : {Filters{1, 6, 33}, Filters{5, 3, 2}, Filters{4, 1, 3},
                                        Filters{9, 4, 4}, Filters{2, 16, 16}, Filters{1, 32, 2}})
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
        CAPTURE(groups);
        CAPTURE(in);
        const Fresh fresh;
        manual_seed(1);
        const Tensor weight = raw::to(randn({groups * out, in, 3, 3}), dtype);
        const auto y_and_dx = [&](const Tensor& w, const Geometry& g) {
          Tensor x = contiguous(ones({2, groups * in, 9, 10}, dtype), format);
          x.requires_grad_();
          const Tensor y = conv2d(x, w, {}, g.stride, g.padding, g.dilation, groups);
          sum(mul(y, y)).backward();
          const auto values = [](const Tensor& t) {
            return raw::to(t, DType::f32).to_vector<float>();
          };
          return std::array{values(y), values(x.grad())};
        };
        for (int round = 0; round < 3; ++round)
          for (const Geometry& g : geometries)
            CHECK(y_and_dx(weight, g) == y_and_dx(raw::clone(weight), g));
      }
}

TEST_CASE("a packed copy is that of all it is made of") {
  const Fresh fresh;
  const NoGradGuard no_grad;
  const Tensor weight = zeros({4}), matrix = zeros({4, 4});
  std::vector<Tensor> with{zeros({4}), Tensor(), raw::select(matrix, 0, 0)};
  int mark = 0;
  const auto expect_made_once = [&] {
    ++mark;
    CHECK(ask(weight, mark, "test", {}, with) == Asked{mark, true});
    CHECK(ask(weight, -1, "test", {}, with) == Asked{mark, false});
  };
  expect_made_once();
  raw::fill_(with[0], 1);
  expect_made_once();
  raw::fill_(matrix, 1);
  expect_made_once();
  CHECK(pack_cache_stats().entries == 1);  // in the place of the older ones
  with[2] = raw::select(matrix, 1, 0);     // the same memory in other steps
  expect_made_once();
  with[1] = zeros({4});
  expect_made_once();
  with[0] = raw::clone(with[0]);
  expect_made_once();
  CHECK(ask(weight, 99) == Asked{99, true});
}

TEST_CASE("the pack cache stays within its bounds and forgets dead weights") {
  const Fresh fresh;
  std::vector<Tensor> weights;
  for (int i = 0; i < 6; ++i) weights.push_back(zeros({4}));
  set_pack_cache_limits(4, int64_t{1} << 30);
  for (const Tensor& weight : weights) ask(weight, 0), ask(weight, 0);
  CHECK(pack_cache_stats().entries == 4);
  CHECK(!ask(weights[5], 0).made);
  CHECK(ask(weights[0], 0).made);  // the least recently used went first
  const int64_t each = pack_cache_stats().bytes / pack_cache_stats().entries;
  set_pack_cache_limits(512, 2 * each);
  CHECK(pack_cache_stats().entries == 2);
  CHECK(pack_cache_stats().bytes == 2 * each);
  weights.clear();
  const Tensor last = zeros({4});
  ask(last, 0);
  CHECK(pack_cache_stats().entries == 0);
  CHECK(pack_cache_stats().bytes == 0);
}

TEST_CASE("a network of many weights finds them all again") {
  const Fresh fresh;
  const NoGradGuard inference;
  std::vector<Tensor> weights;
  for (int i = 0; i < 1000; ++i) weights.push_back(zeros({4}));
  int made = 0;
  for (int round = 0; round < 2; ++round)
    for (const Tensor& weight : weights) made += ask(weight, 0).made;
  CHECK(made == 1000);
}

TEST_CASE("no copy is kept of what may be written unseen") {
  const Fresh fresh;
  const NoGradGuard inference;
  const Tensor weight = zeros({4}), with[] = {zeros({4})};
  ask(weight, 1), ask(weight, 1, "beside", {}, with);
  CHECK(!ask(weight, 2).made);
  CHECK(!ask(weight, 2, "beside", {}, with).made);
  with[0].mutable_data<float>();
  CHECK(!ask(weight, 3).made);
  for (int i = 4; i < 7; ++i) CHECK(ask(weight, i, "beside", {}, with) == Asked{i, true});
  weight.mutable_data<float>();
  for (int i = 7; i < 10; ++i) CHECK(ask(weight, i) == Asked{i, true});
}

TEST_CASE("child: pack cache" * doctest::skip()) {
  const NoGradGuard inference;
  const Tensor a = zeros({4}), b = zeros({4});
  try {
    ask(a, 1), ask(b, 1);
    const bool first = ask(a, 1).made, second = ask(b, 1).made;
    fmt::print("made again: {} {}\n", first, second);
  } catch (const Error& error) {
    fmt::print("{}\n", error.what());
  }
}

TEST_CASE("the pack cache takes its bounds from the environment") {
  const auto child = [](const std::string& environment) {
    return test::run_self(environment, "child: pack cache");
  };
  CHECK(test::contains(child("QUERN_PACK_CACHE_CAPACITY=2"), "made again: false false"));
  CHECK(test::contains(child("QUERN_PACK_CACHE_CAPACITY=1"), "made again: true true"));
  CHECK(test::contains(child("QUERN_PACK_CACHE_MIB=0"), "made again: true true"));
  CHECK(test::contains(child("QUERN_PACK_CACHE_CAPACITY=-1"),
                       "[pack_cache] QUERN_PACK_CACHE_CAPACITY: expected a number, 0.."));
  CHECK(test::contains(child("QUERN_PACK_CACHE_MIB=1G"), "got \"1G\""));
  CHECK_THROWS_WITH_AS(set_pack_cache_limits(-1, 0),
                       "[set_pack_cache_limits] limits: expected at least 0 copies and 0 bytes, "
                       "got -1 and 0",
                       Error);
}

TEST_CASE("threads may ask for packed copies at once") {
  const Fresh fresh;
  const Tensor a = zeros({4}), b = zeros({4});
  std::vector<int> wrong(4);
  {
    std::vector<std::jthread> threads;
    for (int& count : wrong)
      threads.emplace_back([&] {
        for (int i = 0; i < 200; ++i) count += ask(a, 1).mark != 1 || ask(b, 2).mark != 2;
      });
  }
  CHECK(wrong == std::vector<int>(4));
  CHECK(pack_cache_stats().entries == 2);
}
