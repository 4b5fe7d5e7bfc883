// conv_chain in evaluation against the composition of its ops in f64.
#include <doctest/doctest.h>

#include <algorithm>
#include <optional>

#include "gradcheck_helper.h"
#include "precision_scope.h"
#include "quern/autograd/grad_mode.h"
#include "quern/ops/autocast.h"
#include "quern/ops/detail/conv_stage.h"
#include "quern/ops/fused/conv_chain.h"
#include "quern/tensor/parallel.h"
#include "tensor/threads.h"

using namespace quern;
using namespace quern::test;

namespace {

using enum ConvChain::Shortcut;

struct Conv {
  int64_t inputs, outputs, kernel, stride = 1;
};

/// What a network is made of, in sizes that no tile divides.
struct Case {
  std::string_view name;
  Shape x;
  std::vector<Conv> convs;
  ConvChain::Shortcut shortcut;
  std::optional<size_t> gate = {};  // the stage whose output is multiplied by its means
};
const Case kCases[] = {
    {"stem", {2, 3, 19, 23}, {{3, 20, 7, 2}}, none},
    {"pointwise", {1, 5, 3, 4}, {{5, 33, 1}}, none},
    {"bottleneck", {2, 33, 7, 9}, {{33, 10, 1}, {10, 17, 3}, {17, 33, 1}}, identity},
    {"wide bottleneck", {1, 65, 9, 5}, {{65, 34, 1}, {34, 35, 3, 2}, {35, 70, 1}}, projection},
    {"basic", {3, 18, 6, 5}, {{18, 18, 3}, {18, 18, 3}}, identity},
    {"basic with stride", {2, 18, 7, 7}, {{18, 36, 3, 2}, {36, 36, 3}}, projection},
    // Rows that tiles of 6, 8 and 14 pixels fill, or two of them one of 14: padded where they are
    // written.
    {"wide rows", {2, 32, 3, 168}, {{32, 32, 1}, {32, 32, 3}, {32, 32, 1}}, identity},
    {"wide rows with stride", {1, 32, 3, 168}, {{32, 32, 1}, {32, 32, 3, 2}}, none},
    {"short rows", {2, 32, 7, 7}, {{32, 64, 1}, {64, 32, 3}}, identity},
    {"gate on many pixels", {2, 9, 11, 13}, {{9, 20, 1}, {20, 20, 3}, {20, 9, 1}}, identity, 1},
    {"gate on few pixels", {2, 9, 4, 3}, {{9, 20, 3}, {20, 33, 1}}, projection, 0},
    {"gate before rows", {2, 20, 21, 42}, {{20, 8, 1}, {8, 4, 3}, {4, 4, 3}}, none, 0},
    {"gate at the end", {3, 5, 6, 7}, {{5, 18, 3}}, none, 0},
};

/// The tensors of a case; `map` makes each from f64 values in -1..1.
struct Network {
  template <class Map>
  Network(const Case& c, Map map) : shortcut(c.shortcut) {
    uint64_t seed = 1;
    const auto stage = [&](const Conv& conv) {
      const Shape o{conv.outputs};
      const double fan = static_cast<double>(conv.inputs * conv.kernel * conv.kernel);
      const auto make = [&](const Shape& shape, double low, double high, bool parameter) {
        return map(random(shape, ++seed, DType::f64, MemoryFormat::contiguous, low, high),
                   parameter);
      };
      const double w = std::sqrt(3 / fan);
      stages.push_back(
          {.weight = make({conv.outputs, conv.inputs, conv.kernel, conv.kernel}, -w, w, false),
           .stride = conv.stride,
           .padding = conv.kernel / 2,
           .running_mean = make(o, -1, 1, true),
           .running_var = make(o, 0.5, 2, true),
           .bn_weight = make(o, -1, 1, true),
           .bn_bias = make(o, -1, 1, true),
           .eps = 1e-3});
    };
    for (const Conv& conv : c.convs) stage(conv);
    if (c.gate) stages[*c.gate].gate = [](const Tensor& means) { return means; };
    if (c.shortcut == projection) {
      int64_t stride = 1;
      for (const Conv& conv : c.convs) stride *= conv.stride;
      stage({c.x[1], c.convs.back().outputs, 1, stride});
    }
  }

  ConvChain chain() const {
    const size_t depth = stages.size() - (shortcut == projection);
    ConvChain chain{.stages = std::span(stages).first(depth), .shortcut = shortcut};
    if (shortcut == projection) chain.projection = stages.back();
    return chain;
  }
  /// Without gradients where there is a gate: what that keeps is not known, and so is composed.
  Tensor operator()(const Tensor& x) const {
    std::optional<NoGradGuard> no_grad;
    if (std::ranges::any_of(stages, [](const ConvStage& s) { return bool{s.gate}; }))
      no_grad.emplace();
    return conv_chain(x, chain(), false);
  }
  Tensor composed(const Tensor& x) const { return detail::conv_chain_composed(x, chain(), false); }

  std::vector<ConvStage> stages;
  ConvChain::Shortcut shortcut;
};

/// As it is in `dtype`; parameters of a norm are f32 beside bf16.
auto rounded(DType dtype) {
  return [dtype](const Tensor& t, bool parameter) {
    return raw::to(t, parameter && dtype == DType::bf16 ? DType::f32 : dtype);
  };
}
Tensor widened(const Tensor& t) { return raw::to(t, DType::f64); }
Tensor map_values(const Tensor& t, double (*f)(double)) {
  auto values = t.to_vector<double>();
  for (double& v : values) v = f(v);
  return from_vector(values, t.shape());
}

/// Moves the norm's factor to the weight, which is then rounded to bf16, and all else to its bias.
void fold(ConvStage& s) {
  auto weight = s.weight.to_vector<float>(), shift = s.bn_bias.to_vector<float>();
  const auto mean = s.running_mean.to_vector<double>(), var = s.running_var.to_vector<double>(),
             factor = s.bn_weight.to_vector<double>();
  for (size_t c = 0; c < shift.size(); ++c) {
    const double scale = factor[c] / std::sqrt(var[c] + s.eps);
    shift[c] = static_cast<float>(shift[c] - mean[c] * scale);
    const size_t items = weight.size() / shift.size();
    for (size_t i = c * items; i < (c + 1) * items; ++i) weight[i] *= static_cast<float>(scale);
  }
  s.weight = raw::to(from_vector(weight, s.weight.shape()), DType::bf16);
  s.bn_bias = from_vector(shift, s.bn_bias.shape());
  s.running_mean = zeros(s.bn_bias.shape());
  s.running_var = s.bn_weight = ones(s.bn_bias.shape());
  s.eps = 0;
}

/// The same network on the same values in f64, and with every number made positive: what errors are
/// relative to, since an error of one term is not smaller for being subtracted.
Network in_f64(Network n, bool positive) {
  for (ConvStage& s : n.stages) {
    for (Tensor* t : {&s.weight, &s.running_mean, &s.running_var, &s.bn_weight, &s.bn_bias})
      *t = positive ? map_values(widened(*t), [](double v) { return std::abs(v); }) : widened(*t);
    if (positive) s.running_mean = map_values(s.running_mean, [](double v) { return -v; });
  }
  return n;
}

/// Roundings that one path from x to an output meets, of sums in f32 or f64 and of what is stored.
/// `product`: what float32_matmul_precision.h says that one is off.
double bound(const Case& c, DType dtype, double product) {
  const double eps = dtype == DType::f64 ? 0x1p-53 : 0x1p-24;
  double roundings = 0;
  for (const Conv& conv : c.convs) {
    // k products and sums; scale and shift, the mean in it and their use; the shortcut.
    roundings += static_cast<double>(conv.inputs * conv.kernel * conv.kernel) + 8;
  }
  // In bf16 each weight with its factor, and what each stage gives.
  double stored = dtype == DType::bf16 ? static_cast<double>(2 * c.convs.size() + 1) : 0;
  double products = static_cast<double>(c.convs.size() + 1);
  if (c.gate) {  // what it multiplies is in the factors, too: their sums, and both are rounded
    roundings = 2 * roundings + static_cast<double>(c.x[2] * c.x[3]);
    stored *= 2, products *= 2;
  }
  return 1.1 * (roundings * eps + stored * 0x1p-8 + products * product);
}

/// The largest |got - expected| as a share of its bound.
double error(const Case& c, const Network& network, const Tensor& x, const Tensor& got,
             double product = 0) {
  const auto expected = in_f64(network, false).composed(widened(x)).to_vector<double>();
  const auto size = in_f64(network, true)
                        .composed(map_values(widened(x), [](double v) { return std::abs(v); }))
                        .to_vector<double>();
  const auto values = got.to_vector<double>();
  REQUIRE(values.size() == expected.size());
  double worst = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double e =
        std::abs(values[i] - expected[i]) / (bound(c, got.dtype(), product) * size[i] + 1e-300);
    worst = std::max(worst, std::isnan(e) ? INFINITY : e);
  }
  return worst;
}

}  // namespace

TEST_CASE("conv_chain in evaluation is the composition, in every dtype and format") {
  for (const Case& c : kCases)
    for (DType dtype : {DType::f64, DType::f32, DType::bf16})
      for (MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
        CAPTURE(c.name);
        CAPTURE(to_string(dtype));
        const Network network(c, rounded(dtype));
        const Tensor x = random(c.x, 1, dtype, format), kept = raw::clone(x);
        const Tensor y = network(x);
        CHECK(y.dtype() == dtype);
        CHECK(y.format() == format);
        CHECK(error(c, network, x, y) < 1);
        CHECK(same_bits(x, kept));
        CHECK(error(c, network, x, network(strided(x))) < 1);
      }
}

TEST_CASE("conv_chain in evaluation multiplies f32 as precisely as it is told") {
  struct Expected {
    std::string_view precision;
    double product;
  };
  for (const Case& c : kCases)
    for (const auto& [precision, product] : {Expected{"high", 3 * 0x1p-16}, {"medium", 0x1p-7}}) {
      CAPTURE(c.name);
      CAPTURE(std::string(precision));
      const Network network(c, rounded(DType::f32));
      const Tensor x = random(c.x, 1, DType::f32), ieee = network(x);
      const Precision scope(precision, 8);
      const Tensor y = network(x);
      CHECK(error(c, network, x, y, product) < 1);
      CHECK_FALSE(same_bits(y, ieee));
    }
}

TEST_CASE("conv_chain in evaluation under autocast rounds the weights once, norms folded in") {
  for (const Case& c : kCases) {
    if (c.gate) continue;  // a weight's factors are folded in, too, before it is rounded
    CAPTURE(c.name);
    const Network network(c, rounded(DType::f32));
    const Tensor x = random(c.x, 1, DType::f32);
    const AutocastGuard autocast;
    const Tensor y = network(x);
    CHECK(y.dtype() == DType::bf16);
    Network folded = network;
    for (ConvStage& s : folded.stages) fold(s);
    CHECK(same_bits(y, folded(raw::to(x, DType::bf16))));
  }
}

TEST_CASE("conv_chain under autocast gives bf16 whether a gradient is wanted or not") {
  for (const Case& c : kCases)
    for (const bool training : {false, true}) {
      CAPTURE(c.name);
      CAPTURE(training);
      const Network network(c, rounded(DType::f32));
      Tensor x = random(c.x, 1, DType::f32);
      const AutocastGuard autocast;
      CHECK(conv_chain(x, network.chain(), training).dtype() == DType::bf16);
      x.requires_grad_();
      const Tensor y = conv_chain(x, network.chain(), training);
      CHECK(y.dtype() == DType::bf16);
      y.backward(ones_like(y));
      CHECK(x.grad().dtype() == DType::f32);
    }
}

TEST_CASE("conv_chain in evaluation takes norms without weight and bias") {
  const Case& c = kCases[3];
  Network network(c, rounded(DType::f32));
  for (ConvStage& s : network.stages) s.bn_weight = s.bn_bias = Tensor();
  const Tensor x = random(c.x, 1, DType::f32);
  const Tensor y = network(x);
  for (ConvStage& s : network.stages)
    s.bn_weight = ones(s.running_mean.shape()), s.bn_bias = zeros(s.running_mean.shape());
  CHECK(same_bits(y, network(x)));
}

TEST_CASE("conv_chain in evaluation sees what was changed in place") {
  for (const bool amp : {false, true})
    for (const size_t stage : {0, 2, 3}) {
      const Case& c = kCases[3];
      const AutocastGuard autocast(amp);
      const Network network(c, rounded(DType::f32));
      const Tensor x = random(c.x, 1, amp ? DType::bf16 : DType::f32);
      for (int call = 0; call < 3; ++call) network(x);  // weights are packed and kept
      const ConvStage& s = network.stages[stage];
      for (const Tensor& t : {s.weight, s.running_mean, s.running_var, s.bn_weight, s.bn_bias}) {
        const Tensor before = network(x);
        raw::copy_(t, random(t.shape(), 99, DType::f32, MemoryFormat::contiguous, 0.1, 0.5));
        const Tensor after = network(x);
        CHECK(!same_bits(before, after));
        Network fresh = network;
        for (ConvStage& f : fresh.stages) f.weight = raw::clone(f.weight);
        CHECK(same_bits(after, fresh(x)));
      }
    }
}

TEST_CASE("conv_chain in evaluation gives gradients where they are wanted") {
  for (const Case& c : {kCases[0], kCases[4]}) {
    CAPTURE(c.name);
    Network network(c, rounded(DType::f64));
    const Tensor x = leaf({1, c.x[1], 5, 4}, 7);
    ConvStage& s = network.stages[0];
    s.weight.requires_grad_();
    s.bn_weight.requires_grad_();
    s.bn_bias.requires_grad_();
    check_gradients(
        [&](const Tensors& in) {
          Network with = network;
          with.stages[0].weight = in[1], with.stages[0].bn_weight = in[2];
          with.stages[0].bn_bias = in[3];
          return with(in[0]);
        },
        {x, s.weight, s.bn_weight, s.bn_bias});
    CHECK(network(x).requires_grad());
    const NoGradGuard no_grad;
    CHECK(!network(x).requires_grad());
  }
}

TEST_CASE("conv_chain in evaluation gives an image the same bits in any batch") {
  // An image's activations are 1.6 MB in f32: a batch of 11 goes through the stages in several
  // parts.
  for (const Case& c :
       {Case{"large", {11, 64, 47, 47}, {{64, 32, 1}, {32, 32, 3}, {32, 64, 1}}, identity},
        Case{"gated", {4, 16, 24, 24}, {{16, 32, 1}, {32, 16, 1}}, identity, 0}})
    for (DType dtype : {DType::f32, DType::bf16}) {
      const Network network(c, rounded(dtype));
      for (MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
        const Tensor x = random(c.x, 1, dtype, format), y = network(x);
        for (int64_t i = 0; i < c.x[0]; ++i)
          CHECK(same_bits(raw::contiguous(raw::slice(y, 0, i, i + 1)),
                          raw::contiguous(network(raw::slice(x, 0, i, i + 1)))));
      }
    }
}

TEST_CASE("conv_chain in evaluation takes a gate's factors however they lie") {
  for (const Case& c : kCases) {
    if (!c.gate) continue;
    CAPTURE(c.name);
    Network network(c, rounded(DType::f32));
    const Tensor x = random(c.x, 1, DType::f32), y = network(x);
    network.stages[*c.gate].gate = [](const Tensor& means) { return strided(means); };
    CHECK(same_bits(y, network(x)));
  }
}

TEST_CASE("conv_chain in evaluation has the same bits with 1, 2 and 3 threads") {
  const test::Threads kept;
  // Of the second one, cells are so large that threads take the last ones in pieces.
  for (const Case& c :
       {Case{"large", {2, 64, 28, 28}, {{64, 32, 1}, {32, 32, 3}, {32, 64, 1}}, identity},
        Case{"pieces", {1, 256, 28, 28}, {{256, 256, 1}, {256, 32, 3}}, none},
        Case{"gated", {3, 64, 28, 28}, {{64, 96, 1}, {96, 64, 1}}, identity, 0}}) {
    for (DType dtype : {DType::f32, DType::bf16}) {
      const Network network(c, rounded(dtype));
      const Tensor x = random(c.x, 1, dtype, MemoryFormat::channels_last);
      set_num_threads(1);
      const Tensor y = network(x);
      for (int n : {2, 3}) {
        set_num_threads(n);
        CHECK(same_bits(y, network(x)));
      }
    }
  }
}
