// What conv_chain keeps for backward, makes again and writes over.
#include <doctest/doctest.h>

#include "conv_chain_cases.h"
#include "emulated_cpu.h"
#include "quern/autograd/grad_mode.h"
#include "quern/ops/pack_cache.h"
#include "quern/tensor/storage.h"
#include "tensor/threads.h"

using namespace quern;
using namespace quern::test;

TEST_CASE("conv_chain records nothing without gradients, and keeps nothing") {
  each_case([](const Case& c, MemoryFormat format) {
    const Chain chain = differentiable(c, DType::f32, format);
    const Tensor expected = fused(chain.x, chain.get());
    const NoGradGuard guard;
    const auto in_use = [] {
      clear_pack_cache();
      return memory_stats().in_use;
    };
    const int64_t before = in_use();
    const Tensor y = fused(chain.x, chain.get());
    const int64_t after = in_use();
    const Tensor copy = raw::clone(y);
    CHECK(after - before == in_use() - after);
    CHECK(same_bits(y, expected));
    CHECK_FALSE(y.requires_grad());
  });
}

TEST_CASE("conv_chain writes over a gradient only if nobody else sees it") {
  for (const Case& c : kCases) {
    CAPTURE(c.name);
    const Chain chain = differentiable(c, DType::f32, MemoryFormat::channels_last);
    const Tensor y = fused(chain.x, chain.get());
    const Tensor dy = random(y.shape(), 99, DType::f32, y.format()), kept = raw::clone(dy);
    Tensor seen;
    y.register_hook([&](const Tensor& g) {
      seen = g;
      return Tensor();
    });
    y.backward(dy, /*retain_graph=*/true);
    CHECK(same_bits(dy, kept));
    CHECK(same_bits(seen, kept));
    // Again, from a gradient that only the engine holds: the same, added.
    const Tensor once = raw::clone(chain.x.grad());
    y.register_hook([&](const Tensor& g) {
      seen = Tensor();
      return raw::clone(g);
    });
    y.backward(dy);
    const Tensor twice = chain.x.grad();
    bool doubled = true;
    const auto a = once.to_vector<float>(), b = twice.to_vector<float>();
    for (size_t i = 0; i < a.size(); ++i) doubled &= b[i] == 2 * a[i];
    CHECK(doubled);
  }
}

TEST_CASE("conv_chain knows when what it saved has changed") {
  const Case& c = kCases[3];
  const auto backward_after = [&](auto change) {
    const Chain chain = differentiable(c, DType::f32, MemoryFormat::channels_last);
    const Tensor y = fused(chain.x, chain.get());
    change(chain, y);
    y.backward(ones_like(y));
  };
  CHECK_NOTHROW(backward_after([](const Chain&, const Tensor&) {}));
  CHECK_THROWS_WITH_AS(
      backward_after([](const Chain& chain, const Tensor&) { raw::fill_(chain.x, 1); }),
      "[conv_chain] saved tensor f32 [2,12,5,7] channels_last: expected version 1, got 2: it was "
      "changed in place after the forward pass",
      Error);
  CHECK_NOTHROW(backward_after([](const Chain&, const Tensor& y) { raw::fill_(y.detach(), 1); }));
  CHECK_THROWS_AS(backward_after([](const Chain& chain, const Tensor&) {
                    raw::fill_(chain.stages[1].weight.detach(), 1);
                  }),
                  Error);
  CHECK_THROWS_AS(backward_after([](const Chain& chain, const Tensor&) {
                    raw::fill_(chain.stages[2].bn_weight.detach(), 1);
                  }),
                  Error);

  // What the failed pass has freed is not asked for again.
  const Chain chain = differentiable(c, DType::f32, MemoryFormat::channels_last);
  const Tensor y = fused(chain.x, chain.get());
  raw::fill_(chain.stages[1].weight.detach(), 1);
  CHECK_THROWS_AS(y.backward(ones_like(y)), Error);
  CHECK_THROWS_WITH_AS(y.backward(ones_like(y)),
                       "[backward] graph: expected one not yet differentiated, got conv_chain's "
                       "saved tensors freed; pass retain_graph to the first backward()",
                       Error);
}

TEST_CASE("outputs of conv_chain that are made again in backward give the same bits") {
  const Case& first = kCases[4];  // a projection, then identities
  for (DType dtype : {DType::f32, DType::bf16}) {
    const auto run = [&](bool hold) {
      const Chain chain = differentiable(first, dtype, MemoryFormat::channels_last);
      Tensor y = fused(chain.x, chain.get());
      Tensors held, weights;
      const int64_t before = memory_stats().in_use;
      for (int block = 0; block < 4; ++block) {
        const int64_t c = y.size(1);
        weights.push_back(random({c, c, 3, 3}, 7, dtype).requires_grad_());
        ConvStage stage;
        stage.weight = weights.back();
        stage.padding = 1;
        if (hold) held.push_back(y);
        y = conv_chain(y, {.stages = {&stage, 1}, .shortcut = ConvChain::Shortcut::identity}, true);
      }
      const int64_t used = memory_stats().in_use - before;
      y.backward(random(y.shape(), 99, dtype, y.format()));
      Tensors all{chain.x.grad()};
      for (const Tensor& w : weights) all.push_back(w.grad());
      return std::pair{all, used};
    };
    const auto [expected, more] = run(true);
    const auto [got, less] = run(false);
    for (size_t i = 0; i < got.size(); ++i) CHECK(same_bits(got[i], expected[i]));
    CHECK(less < more);
  }
}

namespace {

constexpr int64_t kChannels = 32, kPixels = 4 * 32 * 32;
constexpr int64_t kMaskBytes = kPixels * kChannels / 8;
constexpr int64_t kBytes = kPixels * kChannels * 4;  // of an activation

Tensor input() {
  return random({4, kChannels, 32, 32}, 1, DType::f32, MemoryFormat::channels_last);
}

/// 1×1 convolutions, whose weights and scratch are small beside kBytes.
Tensor identity_chain(const Tensor& x, size_t depth, Tensors& weights) {
  std::vector<ConvStage> stages(depth);
  for (ConvStage& stage : stages) {
    weights.push_back(random({kChannels, kChannels, 1, 1}, 2, DType::f32).requires_grad_());
    stage.weight = weights.back();
  }
  return conv_chain(x, {.stages = stages, .shortcut = Shortcut::identity}, true);
}

/// What f needs at its peak beyond what was in use before.
template <class F>
int64_t peak_of(F f) {
  const int64_t before = memory_stats().in_use;
  reset_peak_memory_stats();
  f();
  return memory_stats().peak - before;
}

}  // namespace

TEST_CASE("conv_chain in training makes no mask if no gradient is wanted") {
  const Tensor x = input();
  Tensors weights;
  const auto forward = [&] { identity_chain(x, 1, weights); };
  clear_pack_cache();  // of weights that are gone, which would be let go in one of the two
  const int64_t recorded = peak_of(forward);
  const NoGradGuard guard;
  CHECK(peak_of(forward) < recorded - kMaskBytes / 2);  // but packed weights are kept
}

TEST_CASE("conv_chain frees what its backward pass is done with as it runs") {
  const Threads one(1);  // else a task may hold a tensor longer
  const auto peak = [](bool retain_graph) {
    Tensors weights;
    const Tensor x = input().requires_grad_(), y = identity_chain(x, 3, weights);
    return peak_of([&] { y.backward(ones_like(y), retain_graph); });
  };
  CHECK(peak(false) <= peak(true) - kBytes);
}

TEST_CASE("few outputs of conv_chain are made again at once") {
  const Threads one(1);
  struct Use {
    int64_t forward, backward;
  };
  const auto use_of = [](int blocks) {
    Tensors weights;
    const Tensor x = input().requires_grad_();
    const int64_t before = memory_stats().in_use;
    Tensor y = x;
    for (int block = 0; block < blocks; ++block) y = identity_chain(y, 1, weights);
    return Use{memory_stats().in_use - before, peak_of([&] { y.backward(ones_like(y)); })};
  };
  const Use four = use_of(4), five = use_of(5), six = use_of(6), ten = use_of(10);
  const int64_t block = five.forward - four.forward;
  CHECK(block < kBytes + kBytes / 4);                   // what a convolution made, and the mask
  CHECK(six.forward - five.forward >= block + kBytes);  // of five in a row the last is kept
  CHECK(ten.backward < five.backward + kBytes / 2);     // four come to be at once in both
}

TEST_CASE("a long row of conv_chains without shortcut is freed" * doctest::skip(kEmulatedCpu)) {
  const Threads one(1);  // the problems are too small for more
  const Tensor weight = ones({1, 1, 1, 1}).requires_grad_();
  const std::vector<ConvStage> stages{{.weight = weight,
                                       .running_mean = zeros({1}),
                                       .running_var = ones({1}),
                                       .bn_weight = {},
                                       .bn_bias = {}}};
  const ConvChain chain{.stages = stages, .shortcut = Shortcut::none};
  clear_pack_cache();
  const int64_t before = memory_stats().in_use;
  {
    Tensor y = ones({1, 1, 2, 2});
    for (int i = 0; i < 30000; ++i) y = conv_chain(y, chain, true);
  }
  clear_pack_cache();
  CHECK(memory_stats().in_use == before);
}
