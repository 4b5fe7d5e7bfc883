// conv_chain in evaluation by strips of rows against its stages one by one, which have none.
#include <algorithm>

#include "conv_chain_cases.h"
#include "quern/ops/activation.h"
#include "quern/ops/binary.h"
#include "quern/ops/detail/chain_strips.h"
#include "quern/tensor/cpu_features.h"
#include "tensor/threads.h"

using namespace quern;
using namespace quern::test;

namespace {

/// A 1×1 and a depthwise convolution as the networks have them.
Convolution pointwise(int64_t outputs, Activation activation, int64_t stride = 1) {
  return {outputs, 1, stride, 1, activation};
}
Convolution depthwise(int64_t channels, int64_t kernel, int64_t stride) {
  return {channels, kernel, stride, channels, Activation::relu6};
}

using enum Activation;
/// Each has more between its convolutions than half of an L2 of 2 MiB holds in f32, in rows that
/// strips do not divide.
const std::vector<Case> kWide{
    {"inverted residual",
     {2, 20, 45, 47},
     {pointwise(160, relu6), depthwise(160, 3, 1), pointwise(20, none)},
     Shortcut::identity},
    {"with stride",
     {1, 20, 51, 50},
     {pointwise(136, relu6), depthwise(136, 3, 2), pointwise(24, none)},
     Shortcut::projection},
    {"without expansion",
     {1, 160, 43, 45},
     {depthwise(160, 3, 1), pointwise(16, hardswish)},
     Shortcut::none},
    {"before a squeeze",
     {2, 16, 46, 51},
     {pointwise(144, silu), depthwise(144, 5, 2)},
     Shortcut::none},
    {"two depthwise",
     {1, 12, 41, 46},
     {pointwise(160, relu), depthwise(160, 7, 1), depthwise(160, 3, 2), pointwise(9, none)},
     Shortcut::none},
    {"1×1 with stride",
     {1, 160, 44, 41},
     {depthwise(160, 3, 1), pointwise(24, relu, 2)},
     Shortcut::none},
    {"few rows",
     {1, 8, 9, 301},
     {pointwise(144, relu), depthwise(144, 3, 1), pointwise(8, none)},
     Shortcut::identity},
};

bool by_strips(const Chain& chain) {
  std::vector<kernels::ConvProblem> problems;
  Shape shape = chain.x.shape();
  for (const ConvStage& stage : chain.stages) {
    problems.push_back(detail::problem_of(stage, shape, chain.dtype));
    shape = detail::output_shape(problems.back());
  }
  return detail::ChainStrips(problems).pay();
}

/// Its stages as chains of their own. The sum with a shortcut is rounded once more.
Tensor one_by_one(const Chain& chain) {
  const auto alone = [](const ConvStage& stage, const Tensor& x) {
    return conv_chain(x, {.stages = {&stage, 1}}, false);
  };
  Tensor y = chain.x;
  for (const ConvStage& stage : chain.stages) y = alone(stage, y);
  if (chain.shortcut == Shortcut::identity) y = y + chain.x;
  if (chain.shortcut == Shortcut::projection) {
    ConvStage linear = chain.projection;
    linear.activation = none;
    y = y + alone(linear, chain.x);
  }
  return y;
}

/// All of them in channels_last, the first one in either format.
template <class F>
void each_wide(DType dtype, F f) {
  for (const Case& c : kWide)
    for (MemoryFormat format : kFormats) {
      if (format == MemoryFormat::contiguous && &c != kWide.data()) continue;
      CAPTURE(c.name);
      CAPTURE(to_string(format));
      f(Chain(c, dtype, format));
    }
}

/// Where L2 has room for all of it, nothing goes by strips.
bool large_l2() { return cache_sizes().l2 > 2 << 20; }
Tensor infer(const Chain& chain) { return conv_chain(chain.x, chain.get(), false); }

}  // namespace

TEST_CASE("conv_chain by strips has the bits of its stages one by one") {
  const Threads threads(2);
  each_wide(DType::f32, [](const Chain& chain) {
    CHECK((by_strips(chain) || large_l2()));
    CHECK(same_bits(infer(chain), one_by_one(chain)));
  });
  each_wide(DType::bf16, [](const Chain& chain) {
    if (chain.shortcut == Shortcut::none) CHECK(same_bits(infer(chain), one_by_one(chain)));
  });
}

TEST_CASE("conv_chain by strips adds a shortcut of bf16 before it rounds") {
  each_wide(DType::bf16, [](const Chain& chain) {
    if (chain.shortcut == Shortcut::none) return;
    Chain branch = chain;
    branch.shortcut = Shortcut::none;
    const auto got = infer(chain).to_vector<double>(),
               twice = one_by_one(chain).to_vector<double>(),
               of_branch = one_by_one(branch).to_vector<double>();
    int64_t wrong = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      // Of the branch, of the projection, which is what is left, and of the sum.
      const double rest = twice[i] - of_branch[i];
      const double sizes = std::abs(of_branch[i]) + std::abs(rest) + 2 * std::abs(twice[i]);
      wrong += !(std::abs(got[i] - twice[i]) <= 0x1p-8 * sizes);
    }
    CHECK(wrong == 0);
  });
}

TEST_CASE("conv_chain by strips has the same bits on any number of threads") {
  for (DType dtype : {DType::f32, DType::bf16})
    each_wide(dtype, [](const Chain& chain) {
      const Tensor one = [&] {
        const Threads threads(1);
        return infer(chain);
      }();
      for (int count : {2, 3, 5, 16, 64}) {
        CAPTURE(count);
        const Threads threads(count);
        CHECK(same_bits(infer(chain), one));
      }
    });
}

TEST_CASE("conv_chain goes by strips where the padding is uneven or none") {
  for (const Pair padding : {Pair{0, 0}, Pair{2, 1}, Pair{1, 4}}) {
    Chain chain(kWide[3], DType::f32, MemoryFormat::channels_last);
    chain.stages[1].padding = padding;
    CHECK((by_strips(chain) || large_l2()));
    CHECK(same_bits(infer(chain), one_by_one(chain)));
  }
}

TEST_CASE("conv_chain stays whole where strips have nothing to gain") {
  const Threads threads(2);
  Chain chain(kWide[0], DType::f32, MemoryFormat::channels_last);
  CHECK((by_strips(chain) || large_l2()));
  chain.stages[0].padding = 1;  // a row of outputs that reads none of x
  CHECK_FALSE(by_strips(chain));
  const Case small{"small", {2, 20, 7, 7}, kWide[0].branch, Shortcut::identity};
  CHECK_FALSE(by_strips(Chain(small, DType::f32, MemoryFormat::channels_last)));
  const Case long_rows{"long rows", {1, 20, 4, 5000}, kWide[0].branch, Shortcut::identity};
  CHECK_FALSE(by_strips(Chain(long_rows, DType::f32, MemoryFormat::channels_last)));
  const Case dense{"dense", kWide[0].input, {{160, 1, 1}, {160, 3, 1}}, Shortcut::none};
  CHECK_FALSE(by_strips(Chain(dense, DType::f32, MemoryFormat::channels_last)));
}
