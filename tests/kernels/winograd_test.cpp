// What Winograd's convolutions round, and where they are taken. That they are exact where nothing
// is rounded is tested with all engines in conv_test.cpp and conv_epilogue_test.cpp.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "conv_cases.h"
#include "larger.h"
#include "records.h"
#include "tensor/run_self.h"
#include "winograd_matrices.h"

using namespace quern;
using namespace quern::kernels;
using namespace quern::test;

namespace {

/// Forward or dgrad of one engine, from plain data.
std::vector<double> convolve(const ConvProblem& p, ConvPass pass, const ConvKernel& kernel,
                             const std::vector<double>& source, const std::vector<double>& weight) {
  const auto plan = plan_conv({p, pass, &kernel, &select_gemm_kernel(p.dtype)});
  const bool forward = pass == ConvPass::forward;
  Buffer from(p.dtype, source), w(p.dtype, weight);
  Buffer to(p.dtype, forward ? p.n * p.oc * p.oh * p.ow : p.n * p.ic * p.ih * p.iw);
  plan->run(from.data(), packed_weight(*plan, w).data(), to.data());
  CHECK(to.guarded());
  return to.values();
}

std::vector<double> convolve_wgrad(const ConvProblem& p, const ConvKernel& kernel,
                                   const std::vector<double>& source,
                                   const std::vector<double>& gradient) {
  Buffer x(p.dtype, source), dy(p.dtype, gradient), dw(p.dtype, p.oc * p.ic * 9);
  plan_conv({p, ConvPass::wgrad, &kernel, &select_gemm_kernel(p.dtype)})
      ->run(x.data(), dy.data(), dw.data());
  CHECK(dw.guarded());
  return dw.values();
}

/// |Bᵀ|·|d|·|B| of the tile whose first output is (top, left).
Matrix source_magnitude(const Winograd& f, const ConvProblem& p, const std::vector<double>& x,
                        int64_t n, int64_t c, int64_t top, int64_t left) {
  Matrix d(f.bt.size(), std::vector<double>(f.bt.size()));
  for (int64_t i = 0; i < f.m + 2; ++i)
    for (int64_t j = 0; j < f.m + 2; ++j) {
      const int64_t y = top - p.pad_h + i, at = left - p.pad_w + j;
      if (y < 0 || y >= p.ih || at < 0 || at >= p.iw) continue;
      d[static_cast<size_t>(i)][static_cast<size_t>(j)] =
          x[static_cast<size_t>(((n * p.ih + y) * p.iw + at) * p.ic + c)];
    }
  return transform(size_of(f.bt), size_of(d));
}

/// sums += a ∘ b
void add_products(Matrix& sums, const Matrix& a, const Matrix& b) {
  for (size_t i = 0; i < sums.size(); ++i)
    for (size_t j = 0; j < sums.size(); ++j) sums[i][j] += a[i][j] * b[i][j];
}

/// |Aᵀ|·(Σ over channels (|G|·|g|·|Gᵀ|) ∘ (|Bᵀ|·|d|·|B|))·|A| for every output of a forward pass:
/// the size of what is added up on the way to it.
std::vector<double> magnitude(const Winograd& f, const ConvProblem& p, const std::vector<double>& x,
                              const std::vector<double>& weight) {
  std::vector<double> all(static_cast<size_t>(p.n * p.oh * p.ow * p.oc));
  std::vector<Matrix> filters;
  for (int64_t filter = 0; filter < p.oc * p.ic; ++filter) {
    Matrix g(3, std::vector<double>(3));
    for (size_t t = 0; t < 9; ++t) g[t / 3][t % 3] = weight[static_cast<size_t>(filter) * 9 + t];
    filters.push_back(transform(size_of(f.g), size_of(g)));
  }
  const Matrix zero(f.bt.size(), std::vector<double>(f.bt.size()));
  for (int64_t n = 0; n < p.n; ++n)
    for (int64_t top = 0; top < p.oh; top += f.m)
      for (int64_t left = 0; left < p.ow; left += f.m) {
        std::vector<Matrix> sums(static_cast<size_t>(p.oc), zero);
        for (int64_t c = 0; c < p.ic; ++c) {
          const Matrix v = source_magnitude(f, p, x, n, c, top, left);
          for (int64_t o = 0; o < p.oc; ++o)
            add_products(sums[static_cast<size_t>(o)], filters[static_cast<size_t>(o * p.ic + c)],
                         v);
        }
        for (int64_t o = 0; o < p.oc; ++o) {
          const Matrix y = transform(size_of(f.at), sums[static_cast<size_t>(o)]);
          for (int64_t i = 0; i < std::min(f.m, p.oh - top); ++i)
            for (int64_t j = 0; j < std::min(f.m, p.ow - left); ++j)
              all[static_cast<size_t>(((n * p.oh + top + i) * p.ow + left + j) * p.oc + o)] =
                  y[static_cast<size_t>(i)][static_cast<size_t>(j)];
        }
      }
  return all;
}

/// |Gᵀ|·(Σ over tiles (|A|·|dy|·|Aᵀ|) ∘ (|Bᵀ|·|d|·|B|))·|G| for every tap of the gradient.
std::vector<double> wgrad_magnitude(const Winograd& f, const ConvProblem& p,
                                    const std::vector<double>& x, const std::vector<double>& dy) {
  std::vector<Matrix> sums(static_cast<size_t>(p.oc * p.ic),
                           Matrix(f.bt.size(), std::vector<double>(f.bt.size())));
  for (int64_t n = 0; n < p.n; ++n)
    for (int64_t top = 0; top < p.oh; top += f.m)
      for (int64_t left = 0; left < p.ow; left += f.m) {
        std::vector<Matrix> sources;
        for (int64_t c = 0; c < p.ic; ++c)
          sources.push_back(source_magnitude(f, p, x, n, c, top, left));
        for (int64_t o = 0; o < p.oc; ++o) {
          Matrix y(f.at.size(), std::vector<double>(f.at.size()));
          for (int64_t i = 0; i < std::min(f.m, p.oh - top); ++i)
            for (int64_t j = 0; j < std::min(f.m, p.ow - left); ++j)
              y[static_cast<size_t>(i)][static_cast<size_t>(j)] =
                  dy[static_cast<size_t>(((n * p.oh + top + i) * p.ow + left + j) * p.oc + o)];
          const Matrix d = transform(size_of(transposed(f.at)), size_of(y));
          for (int64_t c = 0; c < p.ic; ++c)
            add_products(sums[static_cast<size_t>(o * p.ic + c)], d,
                         sources[static_cast<size_t>(c)]);
        }
      }
  std::vector<double> all;
  for (const Matrix& m : sums)
    for (const std::vector<double>& row : transform(size_of(transposed(f.g)), m))
      all.insert(all.end(), row.begin(), row.end());
  return all;
}

/// dgrad as the forward pass of dy whose weight is turned and transposed.
ConvProblem turned(const ConvProblem& p) {
  ConvProblem t = p;
  std::swap(t.ic, t.oc), std::swap(t.ih, t.oh), std::swap(t.iw, t.ow);
  t.pad_h = 2 - p.pad_h, t.pad_w = 2 - p.pad_w;
  return t;
}
std::vector<double> turned(const ConvProblem& p, const std::vector<double>& weight) {
  std::vector<double> t(weight.size());
  for (int64_t o = 0; o < p.oc; ++o)
    for (int64_t c = 0; c < p.ic; ++c)
      for (int64_t i = 0; i < 9; ++i)
        t[static_cast<size_t>((c * p.oc + o) * 9 + 8 - i)] =
            weight[static_cast<size_t>((o * p.ic + c) * 9 + i)];
  return t;
}

/// |got - expected| ≤ γ(n)·size, and they are not the same.
void check_within(const std::vector<double>& got, const std::vector<double>& expected,
                  const std::vector<double>& size, int64_t terms) {
  const double n = static_cast<double>(terms) * kRoundoff;
  double worst = 0;
  for (size_t i = 0; i < got.size(); ++i)
    worst = test::larger(worst, std::abs(got[i] - expected[i]) / (n / (1 - n) * size[i]));
  CHECK(worst <= 1.0);
  CHECK(worst > 0.0);
}

/// Root mean square of the difference, relative to that of what is expected.
double error(const std::vector<double>& got, const std::vector<double>& expected) {
  double sum = 0, of = 0;
  for (size_t i = 0; i < got.size(); ++i)
    sum += (got[i] - expected[i]) * (got[i] - expected[i]), of += expected[i] * expected[i];
  return std::sqrt(sum / of);
}

/// Only the portable tile has no outer products, which the gradient of the weight is made of.
bool takes_wgrad() {
  if (f32_vectors()) {
    REQUIRE(static_cast<bool>(select_gemm_kernel(DType::f32).run_outer));
    return true;
  }
  MESSAGE("skipped: the gradient of the weight, by portable instructions");
  return false;
}

}  // namespace

TEST_CASE("Rounding stays within Winograd's bound") {
  // Of `magnitude`, each output's terms are rounded by the transforms and at most once for each of
  // C products that are added up: with n such roundings an error of at most γ(n) = n·u / (1 - n·u)
  // times the magnitude [Higham, 3.1].
  for (const Case& c : {Case{.n = 1,
                       .groups = 1,
                       .ic = 65,
                       .oc = 33,
                       .size = {9, 8},
                       .kernel = {3, 3},
                       .pad = {1, 1}},
                        Case{.n = 2,
                        .groups = 1,
                        .ic = 300,
                        .oc = 8,
                        .size = {5, 6},
                        .kernel = {3, 3},
                        .pad = {0, 2}}}) {
    const ConvProblem p = c.problem(DType::f32, MemoryFormat::channels_last);
    const ConvProblem exact = c.problem(DType::f64, MemoryFormat::channels_last);
    const std::vector<double> w = waves(p.oc * p.ic * 9, 1);
    for (ConvPass pass : {ConvPass::forward, ConvPass::dgrad}) {
      const bool forward = pass == ConvPass::forward;
      const ConvProblem q = forward ? p : turned(p);
      const std::vector<double> source = waves(q.n * q.ic * q.ih * q.iw, 2);
      const std::vector<double> expected =
          convolve(exact, pass, conv_kernel("reference"), source, w);
      for (const Winograd* f : {&kF2, &kF4}) {
        const ConvKernel& engine =
            f == &kF2 ? conv_kernel("winograd") : conv_kernel("winograd_4x4");
        check_within(convolve(p, pass, engine, source, w), expected,
                     magnitude(*f, q, source, forward ? w : turned(p, w)),
                     q.ic + f->bt_roundings + f->g_roundings + f->at_roundings);
      }
    }
    // Of the gradient of the weight, terms are rounded twice by the source's additions and twice by
    // dy's, at most once for each of the products of T tiles, and 4 times by the filter's:
    // n = T + 8.
    if (!takes_wgrad()) continue;
    const std::vector<double> x = waves(p.n * p.ic * p.ih * p.iw, 2),
                              dy = waves(p.n * p.oc * p.oh * p.ow, 3);
    check_within(convolve_wgrad(p, conv_kernel("winograd"), x, dy),
                 convolve_wgrad(exact, conv_kernel("reference"), x, dy),
                 wgrad_magnitude(kF2, p, x, dy), p.n * ((p.oh + 1) / 2) * ((p.ow + 1) / 2) + 8);
  }
}

TEST_CASE("Winograd's error is no larger than that of plain sums") {
  // Root mean squares over a convolution of ResNet-50, against one f32 sum for each result, as the
  // reference has it. (An engine cuts its sums where its tiles and the caches want it: in the
  // weight's gradient, conv_brgemm adds up two ranges of pixels with SVE's tiles of 512 bits, one
  // with others, and is √2 times as accurate.) Winograd's sums are shorter, their terms larger:
  // measured were 0.6 of plain sums' error forward, where they add up 9 times as many terms, and
  // 0.97 in the weight's gradient.
  const Case c{
      .n = 1, .groups = 1, .ic = 128, .oc = 32, .size = {14, 14}, .kernel = {3, 3}, .pad = {1, 1}};
  const ConvProblem p = c.problem(DType::f32, MemoryFormat::channels_last);
  const ConvProblem exact = c.problem(DType::f64, MemoryFormat::channels_last);
  const std::vector<double> x = waves(p.n * p.ic * p.ih * p.iw, 3), w = waves(p.oc * p.ic * 9, 4),
                            dy = waves(p.n * p.oc * p.oh * p.ow, 5);
  const auto compare = [&](const auto& convolution) {
    const std::vector<double> expected = convolution(exact, conv_kernel("reference"));
    const double winograd = error(convolution(p, conv_kernel("winograd")), expected);
    const double plain = error(convolution(p, conv_kernel("reference")), expected);
    CAPTURE(winograd);
    CAPTURE(plain);
    CHECK(winograd <= plain);
  };
  compare([&](const ConvProblem& q, const ConvKernel& kernel) {
    return convolve(q, ConvPass::forward, kernel, x, w);
  });
  if (!takes_wgrad()) return;
  compare([&](const ConvProblem& q, const ConvKernel& kernel) {
    return convolve_wgrad(q, kernel, x, dy);
  });
}

TEST_CASE("The error of tiles of 4×4 is close to that of plain sums") {
  // By norm; measured were 1.9 times plain sums' for 64 channels, 1.2 times for 512, 8e-7 for both.
  for (int64_t channels : {64, 512}) {
    const Case c{.n = 1,
                 .groups = 1,
                 .ic = channels,
                 .oc = 16,
                 .size = {16, 16},
                 .kernel = {3, 3},
                 .pad = {1, 1}};
    const ConvProblem p = c.problem(DType::f32, MemoryFormat::channels_last);
    const ConvProblem exact = c.problem(DType::f64, MemoryFormat::channels_last);
    const std::vector<double> x = waves(p.n * p.ic * p.ih * p.iw, 3), w = waves(p.oc * p.ic * 9, 4);
    const std::vector<double> expected =
        convolve(exact, ConvPass::forward, conv_kernel("reference"), x, w);
    const double winograd =
        error(convolve(p, ConvPass::forward, conv_kernel("winograd_4x4"), x, w), expected);
    const double plain =
        error(convolve(p, ConvPass::forward, conv_kernel("reference"), x, w), expected);
    CAPTURE(winograd);
    CAPTURE(plain);
    CHECK(winograd <= 1e-6);
    CHECK(winograd <= (channels == 64 ? 2.5 : 1.5) * plain);
  }
}

TEST_CASE("Winograd is taken where it can and pays") {
  GemmKernel gemm = select_gemm_kernel(DType::f32);
  gemm.run_outer = gemm.run;  // not to be called
  const ConvKernel* engine = &conv_kernel("winograd");
  const auto reason = [&](Case c, DType dtype = DType::f32,
                          MemoryFormat format = MemoryFormat::channels_last,
                          ConvPass pass = ConvPass::forward) {
    const char* why = engine->why_not(c.problem(dtype, format), pass, gemm);
    return std::string(why ? why : "");
  };
  const Case good{
      .n = 1, .groups = 1, .ic = 64, .oc = 64, .size = {14, 14}, .kernel = {3, 3}, .pad = {1, 1}};
  CHECK_EQ(reason(good), "");
  CHECK_EQ(reason(good, DType::f32, MemoryFormat::channels_last, ConvPass::dgrad), "");
  CHECK_EQ(reason(good, DType::f32, MemoryFormat::channels_last, ConvPass::wgrad), "");
  CHECK_EQ(reason(good, DType::bf16), "transforms would round to bf16 once more");
  CHECK_EQ(reason(good, DType::f64), "f64 is computed by the definition");
  CHECK_EQ(reason(good, DType::f32, MemoryFormat::contiguous), "");
  Case other = good;
  other.stride = {1, 2};
  CHECK_EQ(reason(other), "filters are not 3×3 with stride, dilation and groups of 1");
  other = good, other.pad = {3, 1};
  CHECK_EQ(reason(other), "padding is larger than 2");
  other = good, other.ic = 3;
  CHECK_EQ(reason(other), "transforms of few channels cost more than they save");
  other = good, other.size = {2, 2};
  CHECK_EQ(reason(other), "few tiles take longer to read or write the transformed weight");
  other.size = {8, 14};
  CHECK_EQ(reason(other), "");
  CHECK_EQ(reason(other, DType::f32, MemoryFormat::channels_last, ConvPass::wgrad),
           "few tiles take longer to read or write the transformed weight");
  other = good, other.size = {14, int64_t{1} << 40};
  CHECK_EQ(reason(other), "scratch for one row of tiles is over 256 MiB");
  gemm.run_outer = nullptr;
  CHECK_EQ(reason(good), "");
  CHECK_EQ(reason(good, DType::f32, MemoryFormat::channels_last, ConvPass::wgrad),
           "the micro-kernel has no outer products");

  engine = &conv_kernel("winograd_4x4");
  other = good, other.size = {16, 16};
  CHECK_EQ(reason(other), "");
  CHECK_EQ(reason(other, DType::f32, MemoryFormat::channels_last, ConvPass::dgrad), "");
  CHECK_EQ(reason(other, DType::f32, MemoryFormat::channels_last, ConvPass::wgrad),
           "gradients of the weight are computed by F(2×2, 3×3)");
  CHECK_EQ(reason(other, DType::bf16), "transforms would round to bf16 once more");
  CHECK_EQ(reason(good), "tiles of 4×4 reach far beyond the output");
  other.size = {12, 12}, other.n = 16;
  CHECK_EQ(reason(other), "few tiles take longer to transform the weight");
}

TEST_CASE("child: winograd" * doctest::skip()) {
  const Case c{
      .n = 1, .groups = 1, .ic = 64, .oc = 64, .size = {14, 14}, .kernel = {3, 3}, .pad = {1, 1}};
  for (DType dtype : {DType::f32, DType::bf16, DType::f64}) {
    std::string taken;
    try {
      taken = choose_conv(c.problem(dtype, MemoryFormat::channels_last), ConvPass::forward)
                  .kernel->name;
    } catch (const Error& error) {
      taken = error.what();
    }
    fmt::print("{}: {}\n", dtype, taken);
  }
}

TEST_CASE("QUERN_WINOGRAD switches Winograd off, and is checked by the first convolution") {
  const auto child = [](const std::string& value) {
    return run_self("QUERN_WINOGRAD=" + value, "child: winograd");
  };
  CHECK(contains(child(""), "f32: winograd\nbf16: brgemm\nf64: brgemm\n"));
  CHECK(contains(child("1"), "f32: winograd\nbf16: brgemm\nf64: brgemm\n"));
  CHECK(contains(child("0"), "f32: brgemm\nbf16: brgemm\nf64: brgemm\n"));
  const std::string error = "[conv2d] QUERN_WINOGRAD: expected 0 or 1, got \"off\"\n";
  CHECK(contains(child("off"), "f32: " + error + "bf16: " + error + "f64: " + error));
}
