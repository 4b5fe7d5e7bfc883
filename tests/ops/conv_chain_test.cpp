// conv_chain against the composition of conv2d, batch_norm, relu and add that it stands for.
#include "quern/ops/fused/conv_chain.h"

#include <doctest/doctest.h>

#include "gradcheck_helper.h"
#include "precision_scope.h"
#include "quern/autograd/grad_mode.h"
#include "quern/ops/autocast.h"
#include "quern/ops/pack_cache.h"
#include "quern/tensor/parallel.h"
#include "quern/tensor/storage.h"

using namespace quern;
using namespace quern::test;

namespace {

using Shortcut = ConvChain::Shortcut;
constexpr MemoryFormat kFormats[] = {MemoryFormat::contiguous, MemoryFormat::channels_last};

struct Convolution {
  int64_t outputs, kernel, stride;
};

/// One of the chains of a ResNet, on an input of an odd size.
struct Case {
  const char* name;
  Shape input;
  std::vector<Convolution> branch;
  Shortcut shortcut;
};
const std::vector<Case> kCases{
    {"stem", {2, 2, 9, 11}, {{5, 7, 2}}, Shortcut::none},
    {"basic", {2, 7, 9, 5}, {{5, 3, 1}, {7, 3, 1}}, Shortcut::identity},
    {"basic, strided", {2, 7, 9, 6}, {{10, 3, 2}, {10, 3, 1}}, Shortcut::projection},
    {"bottleneck", {2, 12, 5, 7}, {{3, 1, 1}, {3, 3, 1}, {12, 1, 1}}, Shortcut::identity},
    {"bottleneck, strided", {3, 6, 7, 8}, {{4, 1, 1}, {5, 3, 2}, {9, 1, 1}}, Shortcut::projection},
};

/// The tensors of a chain, leaves that require a gradient: the same values, rounded to bf16, in any
/// dtype.
struct Chain {
  Chain(const Case& c, DType dtype, MemoryFormat format)
      : shortcut(c.shortcut), dtype(dtype), x(tensor(c.input, -1, 2, format)) {
    int64_t channels = c.input[1], stride = 1;
    for (const Convolution& conv : c.branch) {
      stages.push_back(stage(channels, conv));
      channels = conv.outputs;
      stride *= conv.stride;
    }
    if (shortcut == Shortcut::projection) projection = stage(c.input[1], {channels, 1, stride});
  }
  Tensor tensor(const Shape& shape, double low, double high,
                MemoryFormat format = MemoryFormat::contiguous, bool parameter = false) {
    const Tensor rounded = random(shape, seed++, DType::bf16, format, low, high);
    const DType to = parameter && dtype == DType::bf16 ? DType::f32 : dtype;
    return raw::clone(raw::to(rounded, to));
  }
  ConvStage stage(int64_t channels, const Convolution& conv) {
    const auto parameter = [&](double low, double high) {
      return tensor({conv.outputs}, low, high, MemoryFormat::contiguous, true);
    };
    return {.weight = tensor({conv.outputs, channels, conv.kernel, conv.kernel}, -1, 1),
            .stride = conv.stride,
            .padding = conv.kernel / 2,
            .running_mean = parameter(-1, 1),
            .running_var = parameter(0.5, 2),
            .bn_weight = parameter(0.5, 1.5),
            .bn_bias = parameter(-0.5, 0.5),
            .momentum = 0.25,
            .eps = 1e-3};
  }
  ConvChain get() const {
    ConvChain chain{.stages = stages, .shortcut = shortcut};
    if (shortcut == Shortcut::projection) chain.projection = projection;
    return chain;
  }
  std::vector<const ConvStage*> all() const {
    std::vector<const ConvStage*> list;
    for (const ConvStage& s : stages) list.push_back(&s);
    if (shortcut == Shortcut::projection) list.push_back(&projection);
    return list;
  }
  Tensors leaves() const {
    Tensors list{x};
    for (const ConvStage* s : all()) list.insert(list.end(), {s->weight, s->bn_weight, s->bn_bias});
    return list;
  }
  Tensors running() const {
    Tensors list;
    for (const ConvStage* s : all()) list.insert(list.end(), {s->running_mean, s->running_var});
    return list;
  }
  /// Output, running statistics and the gradients of what requires one.
  template <class Way>
  Tensors run(Way way) const {
    const Tensor y = way(x, get());
    Tensors results{y.detach()};
    for (const Tensor& t : running()) results.push_back(raw::clone(t));
    if (y.requires_grad()) y.backward(random(y.shape(), 99, DType::bf16));
    for (const Tensor& t : leaves()) results.push_back(t.grad());
    return results;
  }

  Shortcut shortcut;
  DType dtype;
  uint64_t seed = 1;
  Tensor x;
  std::vector<ConvStage> stages;
  ConvStage projection;
};

Tensor fused(const Tensor& x, const ConvChain& chain) { return conv_chain(x, chain, true); }
Tensor composed(const Tensor& x, const ConvChain& chain) {
  return detail::conv_chain_composed(x, chain, true);
}

Chain differentiable(const Case& c, DType dtype, MemoryFormat format) {
  Chain chain(c, dtype, format);
  for (Tensor& leaf : chain.leaves()) leaf.requires_grad_();
  return chain;
}

template <class F>
void each_case(F f) {
  for (const Case& c : kCases)
    for (MemoryFormat format : kFormats) {
      CAPTURE(c.name);
      CAPTURE(to_string(format));
      f(c, format);
    }
}

/// What the chain may be off where the composition is off by `distance`. Both round at random, so that
/// tensors of a few elements may differ by a factor; the chain's statistics in f32 are sums in another
/// order, each off by a rounding or two.
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

TEST_CASE("conv_chain in f32 and bf16 is as close to f64 as the composition") {
  each_case([](const Case& c, MemoryFormat format) {
    const Tensors exact = differentiable(c, DType::f64, format).run(composed);
    for (DType dtype : {DType::f32, DType::bf16}) {
      CAPTURE(to_string(dtype));
      const Tensors got = differentiable(c, dtype, format).run(fused);
      const Tensors other = differentiable(c, dtype, format).run(composed);
      for (size_t i = 0; i < got.size(); ++i) {
        CAPTURE(i);
        CHECK(got[i].dtype() == other[i].dtype());
        CHECK_LE(relative_difference(got[i], exact[i]),
                 as_far(relative_difference(other[i], exact[i]), dtype));
      }
    }
  });
}

TEST_CASE("conv_chain multiplies f32 as precisely as the composition") {
  each_case([](const Case& c, MemoryFormat format) {
    const Tensors exact = differentiable(c, DType::f64, format).run(composed);
    const Tensors ieee = differentiable(c, DType::f32, format).run(fused);
    const size_t dx = 1 + Chain(c, DType::f32, format).running().size();
    for (std::string_view precision : {"high", "medium"}) {
      CAPTURE(std::string(precision));
      const Precision scope(precision);
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

TEST_CASE("conv_chain gives the same bits for any number of threads") {
  const int threads = num_threads();
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
  set_num_threads(threads);
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
  const std::vector<double> mean = raw::to_vector<double>(chain.stages[0].running_mean);
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
  CHECK(raw::to_vector<double>(chain.stages[0].running_mean) == mean);
}
