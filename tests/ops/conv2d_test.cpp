#include "quern/ops/conv2d.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "gradcheck_helper.h"
#include "quern/ops/autocast.h"
#include "quern/ops/kernels/conv/conv.h"
#include "quern/ops/pack_cache.h"
#include "quern/tensor/parallel.h"
#include "tensor/threads.h"

using namespace quern;
using namespace quern::test;

namespace {

constexpr MemoryFormat kFormats[] = {MemoryFormat::contiguous, MemoryFormat::channels_last};

struct Case {
  Shape x, weight;
  Pair stride = 1, padding = 0, dilation = 1;
  int64_t groups = 1;

  Tensor operator()(const Tensor& x, const Tensor& w, const Tensor& b = {}) const {
    return conv2d(x, w, b, stride, padding, dilation, groups);
  }
};

const Case kCases[] = {
    {{2, 4, 5, 6}, {3, 4, 1, 1}},
    {{2, 3, 6, 7}, {5, 3, 3, 3}, 1, 1},
    {{1, 17, 6, 5}, {4, 17, 3, 3}, 2, 1},
    {{1, 3, 9, 8}, {4, 3, 5, 3}, {2, 3}, {2, 1}},
    {{1, 18, 7, 8}, {2, 18, 3, 2}, 1, {2, 1}, {2, 3}},
    {{2, 6, 5, 5}, {4, 3, 3, 3}, 1, 1, 1, 2},
    {{1, 4, 5, 6}, {8, 1, 3, 3}, 2, 1, 1, 4},
    {{1, 17, 4, 13}, {17, 1, 3, 3}, 1, 1, 1, 17},
    {{2, 3, 5, 6}, {3, 1, 5, 3}, {2, 1}, {2, 1}, 1, 3},
    {{2, 17, 4, 3}, {3, 17, 4, 3}},
    {{1, 16, 5, 5}, {2, 16, 1, 1}, 2},
    {{1, 2, 2, 2}, {2, 2, 3, 3}, 1, 3},
};

/// The definition, in f64, on logical indices.
std::vector<double> oracle(const Case& c, const Tensor& x, const Tensor& w, const Tensor& b) {
  const auto xs = x.to_vector<double>(), ws = w.to_vector<double>();
  const auto bs = b.defined() ? b.to_vector<double>() : std::vector<double>(size_t(w.size(0)));
  const int64_t height = x.size(2), width = x.size(3), kh = w.size(2), kw = w.size(3);
  const int64_t oh = (height + 2 * c.padding.h - c.dilation.h * (kh - 1) - 1) / c.stride.h + 1;
  const int64_t ow = (width + 2 * c.padding.w - c.dilation.w * (kw - 1) - 1) / c.stride.w + 1;
  const int64_t icg = w.size(1), ocg = w.size(0) / c.groups;
  std::vector<double> y;
  for (int64_t n = 0; n < x.size(0); ++n)
    for (int64_t o = 0; o < w.size(0); ++o)
      for (int64_t i = 0; i < oh; ++i)
        for (int64_t j = 0; j < ow; ++j) {
          double sum = bs[size_t(o)];
          for (int64_t ch = 0; ch < icg; ++ch)
            for (int64_t r = 0; r < kh; ++r)
              for (int64_t s = 0; s < kw; ++s) {
                const int64_t h = i * c.stride.h - c.padding.h + r * c.dilation.h;
                const int64_t v = j * c.stride.w - c.padding.w + s * c.dilation.w;
                if (h < 0 || h >= height || v < 0 || v >= width) continue;
                const int64_t channel = o / ocg * icg + ch;
                sum += xs[size_t(((n * x.size(1) + channel) * height + h) * width + v)] *
                       ws[size_t(((o * icg + ch) * kh + r) * kw + s)];
              }
          y.push_back(sum);
        }
  return y;
}

/// Largest |difference| of y from the oracle, in units of what rounding may do: inputs are in [-1,
/// 1], so that K+1 terms sum to at most K+1 in size; each addition rounds by at most `unit` of
/// that, and the result once by `store` of itself.
double error(const Tensor& y, const std::vector<double>& expected, int64_t terms, double unit,
             double store) {
  const auto got = y.to_vector<double>();
  REQUIRE_EQ(got.size(), expected.size());
  const double k = static_cast<double>(terms + 1);
  double worst = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double bound = (k + 1) * k * unit + store * (std::abs(expected[i]) + k * k * unit);
    const double e = std::abs(got[i] - expected[i]) / bound;
    worst = std::isnan(e) ? INFINITY : std::max(worst, e);
  }
  return worst;
}

}  // namespace

TEST_CASE("conv2d follows its definition in every dtype and format") {
  for (const Case& c : kCases) {
    for (MemoryFormat format : kFormats) {
      for (DType dtype : {DType::f32, DType::bf16, DType::f64}) {
        CAPTURE(c.x);
        CAPTURE(dtype);
        const Tensor x = random(c.x, 1, dtype, format), w = random(c.weight, 2, dtype);
        const Tensor b = random({c.weight[0]}, 3, dtype == DType::f64 ? DType::f64 : DType::f32);
        const int64_t terms = w.numel() / w.size(0);
        const double unit = dtype == DType::f64 ? 0x1p-53 : 0x1p-24;
        const double store = dtype == DType::bf16 ? 0x1p-8 : 0;
        for (const Tensor& bias : {b, Tensor()}) {
          const Tensor y = c(x, w, bias);
          CHECK_EQ(y.dtype(), dtype);
          CHECK(y.is_dense_as(x.format()));
          CHECK_LE(error(y, oracle(c, x, w, bias), terms, unit, store), 1.0);
          // Strided inputs and a channels_last weight hold the same numbers.
          CHECK(same_bits(c(x, raw::contiguous(w, MemoryFormat::channels_last), bias), y));
          if (format == MemoryFormat::contiguous)
            CHECK(same_bits(c(strided(x), strided(w), bias), y));
        }
      }
    }
  }
}

TEST_CASE("conv2d of few channels in f32 takes a NaN to the outputs that read it, no others") {
  const Case cases[] = {
      {{1, 3, 9, 60}, {5, 3, 3, 3}, 2, 1},  {{1, 3, 9, 60}, {33, 3, 3, 3}, 2, 1},
      {{2, 5, 7, 18}, {40, 5, 5, 5}, 1, 2}, {{1, 1, 40, 40}, {3, 1, 1, 5}, 1, {0, 2}},
      {{1, 2, 8, 30}, {4, 2, 3, 7}, 1, 0},  {{1, 15, 6, 21}, {17, 15, 3, 3}, 2, {1, 4}},
  };
  for (const Case& c : cases) {
    for (MemoryFormat format : kFormats) {
      for (int64_t at : {0, 7, 12, 40}) {
        CAPTURE(c.x);
        CAPTURE(at);
        const Tensor x = random(c.x, 1, DType::f32, format), w = random(c.weight, 2, DType::f32);
        x.mutable_data<float>()[at] = NAN;
        const auto got = c(x, w).to_vector<double>(), expected = oracle(c, x, w, {});
        CHECK(std::ranges::equal(
            got, expected, [](double a, double b) { return std::isnan(a) == std::isnan(b); }));
      }
    }
  }
}

TEST_CASE("conv2d's gradients agree with central differences") {
  for (const Case& c : kCases) {
    for (MemoryFormat format : kFormats) {
      CAPTURE(c.x);
      CAPTURE(c.weight);
      check_gradients([&](const Tensors& in) { return c(in[0], in[1], in[2]); },
                      {leaf(c.x, 1, format), leaf(c.weight, 2), leaf({c.weight[0]}, 3)});
    }
  }
}

TEST_CASE("conv2d gives gradients only to those who ask") {
  for (int asks = 1; asks < 8; ++asks) {
    Tensor x = random({1, 4, 5, 5}, 1, DType::f32), w = random({3, 4, 3, 3}, 2, DType::f32);
    Tensor b = random({3}, 3, DType::f32);
    x.requires_grad_((asks & 1) != 0);
    w.requires_grad_((asks & 2) != 0);
    b.requires_grad_((asks & 4) != 0);
    const Tensor y = conv2d(x, w, b);
    y.backward(ones_like(y.detach()));
    CHECK_EQ(x.grad().defined(), (asks & 1) != 0);
    CHECK_EQ(w.grad().defined(), (asks & 2) != 0);
    CHECK_EQ(b.grad().defined(), (asks & 4) != 0);
  }
}

TEST_CASE("conv2d in bf16 has gradients that are rounded once") {
  // Under autocast the weight is an f32 leaf with the bf16 weight's values, which keeps its f32
  // gradient.
  const AutocastGuard autocast;
  const Tensor w16 = random({8, 16, 3, 3}, 2, DType::bf16);
  Tensor x = random({2, 16, 6, 6}, 1, DType::bf16, MemoryFormat::channels_last).requires_grad_();
  Tensor w = raw::to(w16, DType::f32).requires_grad_();
  const Tensor y = conv2d(x, w, {}, 1, 1), dy = random(y.shape(), 3, DType::bf16);
  y.backward(dy);
  Tensor x64 = raw::to(x.detach(), DType::f64).requires_grad_();
  Tensor w64 = raw::to(w16, DType::f64).requires_grad_();
  conv2d(x64, w64, {}, 1, 1).backward(raw::to(dy, DType::f64));
  // Products are exact in f32; a sum of K of them, each at most 1, is K²·2^-24 off; dx is then
  // rounded to half a unit in the last of 8 bits.
  const double sum = 72.0 * 72 * 0x1p-24;
  const double largest = max_abs_difference(x64.grad(), zeros_like(x64.grad()));
  CHECK_EQ(x.grad().dtype(), DType::bf16);
  CHECK_LE(max_abs_difference(x.grad(), x64.grad()), sum + (largest + sum) * 0x1p-8);
  CHECK_LE(max_abs_difference(w.grad(), w64.grad()), sum);
}

TEST_CASE("conv2d under autocast runs in bf16") {
  const AutocastGuard autocast;
  Tensor x = random({1, 16, 6, 6}, 1, DType::f32);
  Tensor w = random({8, 16, 3, 3}, 2, DType::f32).requires_grad_();
  const Tensor b = random({8}, 3, DType::f32);
  const Tensor y = conv2d(x, w, b, 1, 1);
  CHECK_EQ(y.dtype(), DType::bf16);
  CHECK(same_bits(y.detach(),
                  conv2d(raw::to(x, DType::bf16), raw::to(w.detach(), DType::bf16), b, 1, 1)));
  CHECK(same_bits(y.detach(), conv2d(x, raw::to(w.detach(), DType::bf16), b, 1, 1)));
  const Tensor rounded = raw::to(b, DType::bf16);
  CHECK(same_bits(conv2d(x, w, rounded, 1, 1).detach(),
                  conv2d(x, w, raw::to(rounded, DType::f32), 1, 1).detach()));
  y.backward(raw::to(ones_like(y.detach()), DType::bf16));
  CHECK_EQ(w.grad().dtype(), DType::f32);
  CHECK_EQ(conv2d(random(x.shape(), 4), random(w.shape(), 5)).dtype(), DType::f64);
}

TEST_CASE("conv2d sees a weight that was changed in place") {
  clear_pack_cache();
  const Tensor x = random({1, 16, 6, 6}, 1, DType::f32), w = random({8, 16, 3, 3}, 2, DType::f32);
  for (int i = 0; i < 3; ++i) CHECK(same_bits(conv2d(x, w), conv2d(x, raw::clone(w))));
  CHECK_GT(pack_cache_stats().hits, 0);
  const Tensor before = conv2d(x, w);
  raw::copy_(w, random({8, 16, 3, 3}, 7, DType::f32));
  CHECK(same_bits(conv2d(x, w), conv2d(x, raw::clone(w))));
  CHECK_FALSE(same_bits(conv2d(x, w), before));
}

TEST_CASE("conv2d has the same bits with 1, 2 and 3 threads") {
  const test::Threads kept;
  const Case c{{3, 32, 12, 10}, {40, 32, 3, 3}, 2, 1};
  Tensors first;
  for (int threads : {1, 2, 3}) {
    set_num_threads(threads);
    Tensor x = random(c.x, 1, DType::f32, MemoryFormat::channels_last).requires_grad_();
    Tensor w = random(c.weight, 2, DType::f32).requires_grad_();
    Tensor b = random({40}, 3, DType::f32).requires_grad_();
    const Tensor y = c(x, w, b);
    y.backward(random(y.shape(), 4, DType::f32));
    const Tensors results{y.detach(), x.grad(), w.grad(), b.grad()};
    if (first.empty()) first = results;
    for (size_t i = 0; i < first.size(); ++i) CHECK(same_bits(results[i], first[i]));
  }
}

TEST_CASE("Every layer of ResNet-50 runs on micro-kernels") {
  struct Layer {
    int64_t kernel, stride, ic, oc, size;
  };
  const Layer layers[] = {
      {7, 2, 3, 64, 224},     {1, 1, 64, 64, 56},    {3, 1, 64, 64, 56},    {1, 1, 64, 256, 56},
      {1, 1, 256, 64, 56},    {1, 1, 256, 128, 56},  {3, 2, 128, 128, 56},  {1, 1, 128, 512, 28},
      {1, 2, 256, 512, 56},   {1, 1, 512, 128, 28},  {3, 1, 128, 128, 28},  {1, 1, 512, 256, 28},
      {3, 2, 256, 256, 28},   {1, 1, 256, 1024, 14}, {1, 2, 512, 1024, 28}, {1, 1, 1024, 256, 14},
      {3, 1, 256, 256, 14},   {1, 1, 1024, 512, 14}, {3, 2, 512, 512, 14},  {1, 1, 512, 2048, 7},
      {1, 2, 1024, 2048, 14}, {1, 1, 2048, 512, 7},  {3, 1, 512, 512, 7},
  };
  for (const Layer& l : layers) {
    const int64_t pad = l.kernel / 2, out = (l.size - 1) / l.stride + 1;
    for (DType dtype : {DType::f32, DType::bf16, DType::f64}) {
      for (MemoryFormat format : kFormats) {
        const kernels::ConvProblem problem{.n = 16,
                                           .ic = l.ic,
                                           .ih = l.size,
                                           .iw = l.size,
                                           .oc = l.oc,
                                           .oh = out,
                                           .ow = out,
                                           .kh = l.kernel,
                                           .kw = l.kernel,
                                           .stride_h = l.stride,
                                           .stride_w = l.stride,
                                           .pad_h = pad,
                                           .pad_w = pad,
                                           .dilation_h = 1,
                                           .dilation_w = 1,
                                           .groups = 1,
                                           .dtype = dtype,
                                           .format = format};
        for (auto pass :
             {kernels::ConvPass::forward, kernels::ConvPass::dgrad, kernels::ConvPass::wgrad}) {
          const kernels::ConvChoice plan = choose_conv(problem, pass);
          const char* engine = "brgemm";
          if (l.kernel == 3 && l.stride == 1 && dtype == DType::f32) {
            const bool wgrad = pass == kernels::ConvPass::wgrad;
            if (!wgrad && l.size >= 28) engine = "winograd_4x4";
            else if (!wgrad || plan.gemm->run_outer) engine = "winograd";
          }
          // The gradient of the image has three channels, most of a panel of f64.
          if (l.ic == 3 && pass == kernels::ConvPass::dgrad && dtype != DType::f64)
            engine = "kn2row";
          CHECK(plan.name().starts_with(fmt::format("{}:gemm_{}", engine, dtype)));
        }
      }
    }
    // The same channels and kernel on a small image: the definition, within rounding.
    const int64_t size = l.kernel == 1 ? 3 : 4;
    if (l.ic * l.oc * l.kernel * l.kernel > 300000) continue;
    const Case c{{1, l.ic, size, size}, {l.oc, l.ic, l.kernel, l.kernel}, l.stride, pad};
    const Tensor x = random(c.x, 1, DType::f32, MemoryFormat::channels_last),
                 w = random(c.weight, 2, DType::f32);
    CHECK_LE(error(c(x, w), oracle(c, x, w, {}), w.numel() / w.size(0), 0x1p-24, 0), 1.0);
  }
}

TEST_CASE("A row too large for scratch goes to the reference") {
  kernels::ConvProblem problem{.n = 1,
                               .ic = 64,
                               .ih = 3,
                               .iw = int64_t{1} << 22,
                               .oc = 1,
                               .oh = 1,
                               .ow = (int64_t{1} << 22) - 2,
                               .kh = 3,
                               .kw = 3,
                               .stride_h = 1,
                               .stride_w = 1,
                               .pad_h = 0,
                               .pad_w = 0,
                               .dilation_h = 1,
                               .dilation_w = 1,
                               .groups = 1,
                               .dtype = DType::f32,
                               .format = MemoryFormat::contiguous};
  CHECK_EQ(choose_conv(problem, kernels::ConvPass::forward).name(), "reference");
}

TEST_CASE("conv2d rejects what it cannot compute") {
  const auto f32 = [](const Shape& shape) { return zeros(shape); };
  const Tensor x = f32({16, 64, 56, 56}), w = f32({64, 64, 3, 3});
  const auto fails = [](auto call, const char* message) {
    CHECK_THROWS_WITH_AS(call(), message, Error);
  };
  fails(
      [&] {
        conv2d(x, f32({64, 32, 3, 3}));
      },
      "[conv2d] weight: expected 64 input channels (groups=1), got 32; input [16,64,56,56], weight "
      "[64,32,3,3]");
  fails(
      [&] { conv2d(x, w, {}, 1, 0, 1, 2); },
      "[conv2d] weight: expected 32 input channels (groups=2), got 64; input [16,64,56,56], weight "
      "[64,64,3,3]");
  fails([&] { conv2d({}, w); },
        "[conv2d] x: expected a floating, non-empty tensor [N,C,H,W], got undefined");
  fails(
      [&] {
        conv2d(f32({64, 56, 56}), w);
      },
      "[conv2d] x: expected a floating, non-empty tensor [N,C,H,W], got f32 [64,56,56]");
  fails(
      [&] {
        conv2d(f32({0, 64, 56, 56}), w);
      },
      "[conv2d] x: expected a floating, non-empty tensor [N,C,H,W], got f32 [0,64,56,56]");
  fails(
      [&] {
        conv2d(zeros({1, 64, 5, 5}, DType::i64), w);
      },
      "[conv2d] x: expected a floating, non-empty tensor [N,C,H,W], got i64 [1,64,5,5]");
  fails([&] { conv2d(x, {}); },
        "[conv2d] weight: expected a non-empty tensor [O,C/groups,KH,KW], got undefined");
  fails(
      [&] {
        conv2d(x, f32({0, 64, 3, 3}));
      },
      "[conv2d] weight: expected a non-empty tensor [O,C/groups,KH,KW], got f32 [0,64,3,3]");
  fails(
      [&] {
        conv2d(x, zeros({64, 64, 3, 3}, DType::bf16));
      },
      "[conv2d] weight: expected x's dtype, f32, got bf16");
  fails([&] { conv2d(x, w, f32({63})); }, "[conv2d] bias: expected f32 [64], got f32 [63]");
  fails([&] { conv2d(x, w, zeros({64}, DType::f64)); },
        "[conv2d] bias: expected f32 [64], got f64 [64]");
  fails([&] { conv2d(x, w, {}, {1, 0}); }, "[conv2d] stride: expected 1..2147483647, got (1,0)");
  fails([&] { conv2d(x, w, {}, 1, -1); }, "[conv2d] padding: expected 0..2147483647, got (-1,-1)");
  fails([&] { conv2d(x, w, {}, 1, 1, 0); }, "[conv2d] dilation: expected 1..2147483647, got (0,0)");
  fails([&] { conv2d(x, w, {}, 1, INT64_MAX); },
        "[conv2d] padding: expected 0..2147483647, got (9223372036854775807,9223372036854775807)");
  fails([&] { conv2d(x, w, {}, 1, 1, 1, 3); },
        "[conv2d] groups: expected a divisor of 64 input and 64 output channels, got 3");
  fails([&] { conv2d(x, w, {}, 1, 1, 1, 0); },
        "[conv2d] groups: expected a divisor of 64 input and 64 output channels, got 0");
  fails(
      [&] {
        conv2d(x, f32({64, 64, 59, 3}), {}, 1, 1);
      },
      "[conv2d] weight: expected a kernel (dilated: 59) within the padded input (58) along height; "
      "input "
      "[16,64,56,56], weight [64,64,59,3]");
  fails(
      [&] {
        conv2d(x, w, {}, 1, 1, {1, 29});
      },
      "[conv2d] weight: expected a kernel (dilated: 59) within the padded input (58) along width; "
      "input "
      "[16,64,56,56], weight [64,64,3,3]");
  // An output whose size in bytes does not fit.
  CHECK_THROWS_AS(conv2d(x, w, {}, 1, INT32_MAX), Error);
}
