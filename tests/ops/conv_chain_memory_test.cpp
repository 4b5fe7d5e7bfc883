// What conv_chain keeps for backward, makes again and writes over.
#include <doctest/doctest.h>

#include "conv_chain_cases.h"
#include "quern/autograd/grad_mode.h"
#include "quern/ops/pack_cache.h"
#include "quern/tensor/storage.h"

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
    const auto a = raw::to_vector<float>(once), b = raw::to_vector<float>(twice);
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
