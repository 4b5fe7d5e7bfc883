// conv_chain against the composition of conv2d, batch_norm, relu and add that it stands for.
#include <doctest/doctest.h>

#include "conv_chain_cases.h"
#include "precision_scope.h"
#include "quern/ops/autocast.h"
#include "quern/ops/binary.h"
#include "quern/ops/sum.h"
#include "quern/tensor/parallel.h"
#include "tensor/threads.h"

using namespace quern;
using namespace quern::test;

namespace {

/// What the chain may be off where the composition is off by `distance`. Both round at random, so
/// that tensors of a few elements may differ by a factor; the chain's statistics in f32 are sums in
/// another order, each off by a rounding or two.
double as_far(double distance, DType dtype) {
  return dtype == DType::bf16 ? 2 * distance + 0x1p-9 : 4 * distance + 4 * 0x1p-24;
}

}  // namespace

TEST_CASE("conv_chain in f64 is the composition") {
  each_case([](const Case& c, MemoryFormat format) {
    const Tensors got = differentiable(c, DType::f64, format).run(fused);
    const Tensors expected = differentiable(c, DType::f64, format).run(composed);
    CHECK(got[0].format() == format);
    REQUIRE(got.size() == expected.size());
    for (size_t i = 0; i < got.size(); ++i) {
      CAPTURE(i);
      // Sums of at most 150 terms, in another order, through at most six layers there and back.
      CHECK_LE(relative_difference(got[i], expected[i]), 150 * 12 * 0x1p-53);
    }
  });
}

TEST_CASE("conv_chain in f32 is as close to f64 as the composition") {
  // Root mean squares over some draws: in one, a tensor of few elements may be exact by chance.
  constexpr int kDraws = 4;
  each_case([](const Case& c, MemoryFormat format) {
    std::vector<double> got, other;
    for (uint64_t draw = 0; draw < kDraws; ++draw) {
      const Tensors exact = differentiable(c, DType::f64, format, draw).run(composed);
      const auto add_squares = [&](std::vector<double>& sums, auto way) {
        const Tensors results = differentiable(c, DType::f32, format, draw).run(way);
        sums.resize(results.size());
        for (size_t i = 0; i < results.size(); ++i) {
          CHECK(results[i].dtype() == DType::f32);
          const double off = relative_difference(results[i], exact[i]);
          sums[i] += off * off / kDraws;
        }
      };
      add_squares(got, fused);
      add_squares(other, composed);
    }
    for (size_t i = 0; i < got.size(); ++i) {
      CAPTURE(i);
      CHECK_LE(std::sqrt(got[i]), as_far(std::sqrt(other[i]), DType::f32));
    }
  });
}

TEST_CASE("conv_chain in bf16 is as close to f64 as the composition") {
  each_case([](const Case& c, MemoryFormat format) {
    const Tensors exact = differentiable(c, DType::f64, format).run(composed);
    const Tensors got = differentiable(c, DType::bf16, format).run(fused);
    const Tensors other = differentiable(c, DType::bf16, format).run(composed);
    for (size_t i = 0; i < got.size(); ++i) {
      CAPTURE(i);
      CHECK(got[i].dtype() == other[i].dtype());
      CHECK_LE(relative_difference(got[i], exact[i]),
               as_far(relative_difference(other[i], exact[i]), DType::bf16));
    }
  });
}

namespace {

/// t becomes whole numbers, moved by `offset`.
void make_whole(const Tensor& t, double factor, double offset = 0) {
  auto values = t.to_vector<double>();
  for (double& v : values) v = std::floor(factor * v) + offset;
  raw::copy_(t, from_vector(values, t.shape()));
}
/// The convolutions that read x, which is `offset` from zero, are exact in f32: whole numbers.
Tensors run_at(double offset, const Case& c, DType dtype, MemoryFormat format,
               Tensor way(const Tensor&, const ConvChain&)) {
  Chain chain(c, dtype, format);
  make_whole(chain.x, 3, offset);
  make_whole(chain.stages[0].weight, 3);
  if (c.shortcut == Shortcut::projection) make_whole(chain.projection.weight, 3);
  for (Tensor& leaf : chain.leaves()) leaf.requires_grad_();
  Tensors results = chain.run(way);
  // What depends on the offset: the means of those convolutions, and the gradients of their
  // weights.
  const size_t stages = chain.all().size(), weights = 2 + 2 * stages;
  for (size_t i : {size_t{0}, stages - 1})
    if (i == 0 || c.shortcut == Shortcut::projection)
      results[1 + 2 * i] = results[weights + 3 * i] = Tensor();
  return results;
}

}  // namespace

TEST_CASE("conv_chain in f32 is as exact far from zero as near it") {
  // A batch norm takes away what a 1×1 makes of a constant; here that is up to 10⁵ times the
  // deviation.
  const Case cases[] = {
      {"one", {3, 12, 7, 9}, {{35, 1, 1}}, Shortcut::none},
      {"three", {3, 12, 7, 9}, {{16, 1, 1}, {8, 3, 1}, {40, 1, 1}}, Shortcut::none},
      {"join", {3, 12, 7, 9}, {{16, 1, 1}, {8, 3, 2}, {40, 1, 1}}, Shortcut::projection}};
  for (const Case& c : cases)
    for (MemoryFormat format : kFormats)
      for (auto way : {fused, composed}) {
        CAPTURE(c.name);
        CAPTURE((way == fused));
        const Tensors exact = run_at(0, c, DType::f64, format, composed);
        const Tensors near = run_at(0, c, DType::f32, format, way);
        const Tensors far = run_at(0x1p17, c, DType::f32, format, way);
        for (size_t i = 0; i < exact.size(); ++i) {
          CAPTURE(i);
          if (exact[i].defined())
            CHECK_LE(relative_difference(far[i], exact[i]),
                     as_far(relative_difference(near[i], exact[i]), DType::f32));
        }
      }
}

TEST_CASE("conv_chain multiplies f32 as precisely as the composition") {
  each_case([](const Case& c, MemoryFormat format) {
    const Tensors exact = differentiable(c, DType::f64, format).run(composed);
    const Tensors ieee = differentiable(c, DType::f32, format).run(fused);
    const size_t dx = 1 + Chain(c, DType::f32, format).running().size();
    for (std::string_view precision : {"high", "medium"}) {
      CAPTURE(std::string(precision));
      const Precision scope(precision, 8);
      const Tensors got = differentiable(c, DType::f32, format).run(fused);
      const Tensors other = differentiable(c, DType::f32, format).run(composed);
      for (size_t i = 0; i < got.size(); ++i) {
        CAPTURE(i);
        CHECK_LE(relative_difference(got[i], exact[i]),
                 as_far(relative_difference(other[i], exact[i]), DType::f32));
      }
      CHECK_FALSE(same_bits(got[dx], ieee[dx]));
    }
  });
}

TEST_CASE("conv_chain under autocast convolves in bf16 and keeps f32 parameters") {
  each_case([](const Case& c, MemoryFormat format) {
    const Tensors exact = differentiable(c, DType::f64, format).run(composed);
    const auto cast = [](auto way) {
      return [way](const Tensor& x, const ConvChain& chain) {
        const AutocastGuard guard;
        return way(raw::to(x, DType::bf16), chain);
      };
    };
    const Tensors got = differentiable(c, DType::f32, format).run(cast(fused));
    const Tensors other = differentiable(c, DType::f32, format).run(cast(composed));
    CHECK(got[0].dtype() == DType::bf16);
    for (size_t i = 0; i < got.size(); ++i) {
      CAPTURE(i);
      REQUIRE(got[i].defined() == other[i].defined());  // x was cast without a gradient
      if (!got[i].defined()) continue;
      if (i > 0) CHECK(got[i].dtype() == DType::f32);
      CHECK_LE(relative_difference(got[i], exact[i]),
               as_far(relative_difference(other[i], exact[i]), DType::bf16));
    }
  });
}

TEST_CASE("gradients of conv_chain") {
  each_case([](const Case& c, MemoryFormat format) {
    const Chain chain = differentiable(c, DType::f64, format);
    check_gradients(
        [&](const Tensors& in) {
          ConvChain copy = chain.get();
          std::vector<ConvStage> stages = chain.stages;
          size_t i = 1;
          const auto take = [&](ConvStage& s) {
            s.weight = in[i++], s.bn_weight = in[i++], s.bn_bias = in[i++];
            s.running_mean = s.running_var = {};
          };
          for (ConvStage& s : stages) take(s);
          if (copy.shortcut == Shortcut::projection) take(copy.projection);
          if (c.gate) stages[*c.gate].gate = Chain::gate_by(in[i]);
          copy.stages = stages;
          return conv_chain(in[0], copy, true);
        },
        chain.leaves());
  });
}

TEST_CASE("conv_chain differentiates what is asked for and no more") {
  for (const Case& c : kCases) {
    CAPTURE(c.name);
    const size_t leaves = Chain(c, DType::f64, MemoryFormat::contiguous).leaves().size();
    for (size_t frozen = 0; frozen < leaves; ++frozen)
      for (bool alone : {false, true}) {
        const auto run = [&](auto way) {
          const Chain chain(c, DType::f64, MemoryFormat::channels_last);
          Tensors all = chain.leaves();
          for (size_t i = 0; i < leaves; ++i) all[i].requires_grad_((i == frozen) == alone);
          return chain.run(way);
        };
        const Tensors got = run(fused), expected = run(composed);
        for (size_t i = 0; i < got.size(); ++i) {
          REQUIRE(got[i].defined() == expected[i].defined());
          if (got[i].defined())
            CHECK_LE(relative_difference(got[i], expected[i]), 150 * 12 * 0x1p-53);
        }
      }
  }
}

TEST_CASE("conv_chain takes batch norms without parameters or running statistics") {
  for (const Case& c : kCases) {
    CAPTURE(c.name);
    const auto run = [&](auto way) {
      Chain chain = differentiable(c, DType::f64, MemoryFormat::channels_last);
      for (ConvStage& s : chain.stages)
        s.bn_weight = s.bn_bias = s.running_mean = s.running_var = {};
      const Tensor y = way(chain.x, chain.get());
      y.backward(random(y.shape(), 99));
      return Tensors{y, chain.x.grad(), chain.stages[0].weight.grad()};
    };
    const Tensors got = run(fused), expected = run(composed);
    for (size_t i = 0; i < got.size(); ++i)
      CHECK_LE(relative_difference(got[i], expected[i]), 150 * 12 * 0x1p-53);
  }
}

TEST_CASE("conv_chain gives the same bits for any number of threads") {
  const test::Threads kept;
  for (const Case& small : kCases) {
    Case c = small;
    c.input[2] = 33, c.input[3] = 29;
    for (DType dtype : {DType::f32, DType::bf16}) {
      const auto run = [&](int n) {
        set_num_threads(n);
        return differentiable(c, dtype, MemoryFormat::channels_last).run(fused);
      };
      const Tensors one = run(1);
      for (int n : {2, 3}) {
        const Tensors other = run(n);
        for (size_t i = 0; i < one.size(); ++i) CHECK(same_bits(one[i], other[i]));
      }
    }
  }
}

TEST_CASE("conv_chain in evaluation is the composition of running statistics") {
  each_case([](const Case& c, MemoryFormat format) {
    const Chain chain = differentiable(c, DType::f64, format);
    const auto evaluated = [](auto way) {
      return [way](const Tensor& x, const ConvChain& chain) { return way(x, chain, false); };
    };
    const Tensors got = chain.run(evaluated(conv_chain)),
                  expected = differentiable(c, DType::f64, format)
                                 .run(evaluated(detail::conv_chain_composed));
    for (size_t i = 0; i < got.size(); ++i)
      CHECK_LE(relative_difference(got[i], expected[i]), 150 * 12 * 0x1p-53);
  });
}

TEST_CASE("conv_chain refuses what it cannot do, before anything has changed") {
  Chain chain(kCases[2], DType::f32, MemoryFormat::contiguous);
  const auto refuses = [&](const ConvChain& wrong, const char* message) {
    for (bool training : {true, false})
      CHECK_THROWS_WITH_AS(conv_chain(chain.x, wrong, training), message, Error);
  };
  const std::vector<double> mean = chain.stages[0].running_mean.to_vector<double>();
  refuses({}, "[conv_chain] stages: expected at least one, got none");
  ConvChain wrong = chain.get();
  wrong.shortcut = Shortcut::identity;
  refuses(wrong,
          "[conv_chain] shortcut: expected the shape of the branch, [2,10,5,3], got [2,7,9,6]");
  wrong = chain.get();
  wrong.projection = {};
  refuses(wrong, "[conv2d] weight: expected a non-empty tensor [O,C/groups,KH,KW], got undefined");
  std::vector<ConvStage> stages = chain.stages;
  wrong = chain.get();
  wrong.stages = stages;
  stages[1].weight = ones({10, 9, 3, 3});
  refuses(wrong,
          "[conv2d] weight: expected 10 input channels (groups=1), got 9; input [2,10,5,3], weight "
          "[10,9,3,3]");
  stages[1] = chain.stages[1];
  stages[1].weight = ones({10, 10, 3, 3}, DType::f64);
  refuses(wrong, "[conv2d] weight: expected x's dtype, f32, got f64");
  stages[1] = chain.stages[1];
  stages[1].bn_bias = ones({11});
  refuses(wrong, "[batch_norm] bias: expected f32 [10], got f32 [11]; x f32 [2,10,5,3]");
  stages[1] = chain.stages[1];
  CHECK_THROWS_WITH_AS(conv_chain({}, wrong, true),
                       "[conv2d] x: expected a floating, non-empty tensor [N,C,H,W], got undefined",
                       Error);
  stages[0].running_var = {};
  CHECK_THROWS_AS(conv_chain(chain.x, wrong, false), Error);
  wrong = chain.get();
  stages = chain.stages;
  wrong.stages = stages;
  stages.back().gate = [](const Tensor& means) { return means; };
  refuses(wrong, "[conv_chain] shortcut: expected none beside a gate of the last stage");
  wrong.shortcut = Shortcut::none;
  stages.back().gate = [](const Tensor& means) { return raw::to(means, DType::f64); };
  refuses(wrong, "[conv_chain] gate: expected factors f32 [2,10,1,1], got f64 [2,10,1,1]");
  stages.back().gate = [](const Tensor&) { return Tensor(); };
  refuses(wrong, "[conv_chain] gate: expected factors f32 [2,10,1,1], got undefined");
  CHECK(chain.stages[0].running_mean.to_vector<double>() == mean);
}

TEST_CASE("conv_chain differentiates what a gate kept, and one that does not look") {
  const Case c{"gated", {2, 5, 6, 7}, {{9, 3, 1, 1, Activation::silu}}, Shortcut::none, 0};
  // By the means alone, by the product alone, by both; of factors that are of the means, or not.
  for (const bool looks : {true, false})
    for (const auto& [by_means, by_product] :
         {std::pair{true, false}, {false, true}, {true, true}}) {
      CAPTURE(looks);
      CAPTURE(by_means);
      CAPTURE(by_product);
      const auto run = [&](auto way) {
        Chain leaves = differentiable(c, DType::f64, MemoryFormat::channels_last);
        Tensor means;
        leaves.stages[0].gate = [&](const Tensor& m) {
          means = m;
          return looks ? sigmoid(m) : full(m.shape(), 0.75, DType::f64);
        };
        const Tensor y = way(leaves.x, leaves.get());
        Tensor loss = zeros({}, DType::f64);
        if (by_means) loss = loss + sum(means * random(means.shape(), 5));
        if (by_product) loss = loss + sum(y * random(y.shape(), 6));
        for (int pass = 0; pass < 2; ++pass) loss.backward({}, /*retain_graph=*/pass == 0);
        return Tensors{leaves.x.grad(), leaves.stages[0].weight.grad(),
                       leaves.stages[0].bn_bias.grad()};
      };
      const Tensors got = run(fused), expected = run(composed);
      for (size_t i = 0; i < got.size(); ++i)
        CHECK_LE(relative_difference(got[i], expected[i]), 150 * 12 * 0x1p-53);
    }
}
