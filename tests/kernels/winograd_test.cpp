// Winograd's transforms on every instruction set, and what its convolutions round. That they are exact
// where nothing is rounded is tested with all engines in conv_test.cpp and conv_fusion_test.cpp.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "conv_cases.h"
#include "quern/ops/kernels/conv/winograd_registry.h"
#include "records.h"

using namespace quern;
using namespace quern::kernels;
using namespace quern::test;

namespace {

/// Like numbers of a network, exact in f32: both signs, mostly below 1.
std::vector<double> waves(int64_t count, double phase) {
  std::vector<double> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    const double t = static_cast<double>(i);
    values[i] = static_cast<double>(
        static_cast<float>(std::sin(12.9898 * t + phase) * std::cos(0.37 * t * t)));
  }
  return values;
}

/// Forward or dgrad of one engine, from plain data.
std::vector<double> convolve(const ConvProblem& p, ConvPass pass, const ConvKernel& kernel,
                             const std::vector<double>& source, const std::vector<double>& weight) {
  const ConvPlan plan{p, pass, &kernel, &select_gemm_kernel(p.dtype)};
  const bool forward = pass == ConvPass::forward;
  Buffer from(p.dtype, source), w(p.dtype, weight);
  Buffer to(p.dtype, forward ? p.n * p.oc * p.oh * p.ow : p.n * p.ic * p.ih * p.iw);
  Buffer packed(p.dtype, plan.packed_bytes() / itemsize(p.dtype));
  plan.pack(w.data(), packed.data());
  const void* read = plan.packed_bytes() > 0 ? packed.data() : w.data();
  if (forward) conv_forward(plan, from.data(), read, to.data());
  else conv_dgrad(plan, from.data(), read, to.data());
  CHECK(to.guarded());
  return to.values();
}

std::vector<double> convolve_wgrad(const ConvProblem& p, const ConvKernel& kernel,
                                   const std::vector<double>& source,
                                   const std::vector<double>& gradient) {
  const ConvPlan plan{p, ConvPass::wgrad, &kernel, &select_gemm_kernel(p.dtype)};
  Buffer x(p.dtype, source), dy(p.dtype, gradient), dw(p.dtype, p.oc * p.ic * 9);
  conv_wgrad(plan, x.data(), dy.data(), dw.data());
  CHECK(dw.guarded());
  return dw.values();
}

using Matrix = std::vector<std::vector<double>>;

Matrix product(const Matrix& a, const Matrix& b) {
  Matrix c(a.size(), std::vector<double>(b[0].size()));
  for (size_t i = 0; i < a.size(); ++i)
    for (size_t j = 0; j < b[0].size(); ++j)
      for (size_t k = 0; k < b.size(); ++k) c[i][j] += a[i][k] * b[k][j];
  return c;
}
Matrix transposed(const Matrix& a) {
  Matrix t(a[0].size(), std::vector<double>(a.size()));
  for (size_t i = 0; i < a.size(); ++i)
    for (size_t j = 0; j < a[0].size(); ++j) t[j][i] = a[i][j];
  return t;
}

/// The matrices of F(m×m, 3×3), and how often a term is rounded by them: a constant, each product and each
/// addition on its way, along both axes.
struct Winograd {
  int64_t m;
  Matrix bt, g, at;
  int64_t bt_roundings, g_roundings, at_roundings;
};

const Winograd kF2{.m = 2,
                   .bt = {{1, 0, -1, 0}, {0, 1, 1, 0}, {0, -1, 1, 0}, {0, 1, 0, -1}},
                   .g = {{1, 0, 0}, {.5, .5, .5}, {.5, -.5, .5}, {0, 0, 1}},
                   .at = {{1, 1, 1, 0}, {0, 1, -1, -1}},
                   .bt_roundings = 2,
                   .g_roundings = 4,
                   .at_roundings = 4};

/// On the points 0, ±2/3, ±3/2 and ∞: powers of the points in Aᵀ, and in G over Π (point - other points);
/// coefficients of the products of (x - other points) in Bᵀ [Lavin & Gray, 5.1].
const Winograd kF4 = [] {
  const std::array points{0.0, 2.0 / 3, -2.0 / 3, 1.5, -1.5};
  Winograd f{.m = 4,
             .bt = Matrix(6, std::vector<double>(6)),
             .g = Matrix(6, std::vector<double>(3)),
             .at = Matrix(4, std::vector<double>(6)),
             .bt_roundings = 12,
             .g_roundings = 8,
             .at_roundings = 10};
  for (size_t i = 0; i <= points.size(); ++i) {
    std::vector<double> polynomial{1};
    double scale = 1;
    for (size_t j = 0; j < points.size(); ++j) {
      if (j == i) continue;
      polynomial.insert(polynomial.begin(), 0);
      for (size_t k = 0; k + 1 < polynomial.size(); ++k)
        polynomial[k] -= points[j] * polynomial[k + 1];
      if (i < points.size()) scale *= points[i] - points[j];
    }
    std::copy(polynomial.begin(), polynomial.end(), f.bt[i].begin());
    const auto power = [&](size_t k, size_t highest) {
      return i == points.size() ? static_cast<double>(k == highest)
                                : std::pow(points[i], static_cast<double>(k));
    };
    for (size_t k = 0; k < 3; ++k) f.g[i][k] = power(k, 2) / scale;
    for (size_t k = 0; k < 4; ++k) f.at[k][i] = power(k, 3);
  }
  return f;
}();

/// |m|
Matrix size_of(Matrix m) {
  for (auto& row : m)
    for (double& v : row) v = std::abs(v);
  return m;
}
/// l·m·lᵀ
Matrix transform(const Matrix& l, const Matrix& m) { return product(product(l, m), transposed(l)); }

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

/// |Aᵀ|·(Σ over channels (|G|·|g|·|Gᵀ|) ∘ (|Bᵀ|·|d|·|B|))·|A| for every output of a forward pass: the
/// size of what is added up on the way to it.
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
    worst = std::max(worst, std::abs(got[i] - expected[i]) / (n / (1 - n) * size[i]));
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

}  // namespace

TEST_CASE("Transforms of 2×2 outputs equal the reference's on every instruction set") {
  // Integers, and multiples of a quarter: exact.
  constexpr int64_t tiles = 3, pitch = 41, width = 2 * tiles + 2;
  for (int64_t channels : {1, 7, 16, 24, 40}) {
    const auto results = [&](const WinogradKernel& kernel) {
      Buffer image(DType::f32, integers(4 * width * pitch, 1));
      Buffer filters(DType::f32, integers(2 * 9 * pitch, 2));
      Buffer m(DType::f32, integers(16 * tiles * pitch, 3));
      Buffer v(DType::f32, 16 * tiles * pitch), u(DType::f32, 16 * 2 * pitch),
          turned(DType::f32, 16 * 2 * pitch), y(DType::f32, 2 * 2 * tiles * pitch),
          dy(DType::f32, 16 * tiles * pitch), dg(DType::f32, 2 * 9 * pitch);
      const auto floats = [](void* p) { return static_cast<float*>(p); };
      WinogradTiles t{.from = floats(image.data()),
                      .to = floats(v.data()),
                      .row = width * pitch,
                      .pixel = pitch,
                      .point = tiles * pitch,
                      .tile = pitch,
                      .tiles = tiles,
                      .channels = channels};
      kernel.f2.source(t);
      t.to = floats(dy.data());
      kernel.f2.output_gradient(t);
      t.from = floats(m.data()), t.to = floats(y.data()), t.row = 2 * tiles * pitch;
      kernel.f2.output(t);
      WinogradFilters f{.from = floats(filters.data()),
                        .to = floats(u.data()),
                        .filter = 9 * pitch,
                        .tap = pitch,
                        .point = 2 * pitch,
                        .row = pitch,
                        .filters = 2,
                        .columns = channels};
      kernel.f2.weight(f);
      f.from += 8 * pitch, f.tap = -pitch, f.to = floats(turned.data());
      kernel.f2.weight(f);
      f.from = floats(m.data()), f.tap = pitch, f.to = floats(dg.data());
      kernel.f2.weight_gradient(f);
      for (const Buffer* b : {&v, &u, &turned, &y, &dy, &dg}) CHECK(b->guarded());
      return std::array{v.values(), u.values(),  turned.values(),
                        y.values(), dy.values(), dg.values()};
    };
    const auto expected = results(conv_winograd_reference);
    each_runnable(winograd_kernels(), [&](const WinogradKernel& kernel) {
      CAPTURE(std::string(kernel.name));
      CAPTURE(channels);
      CHECK(results(kernel) == expected);
    });
  }
}

TEST_CASE("Transforms of 4×4 outputs are their matrices' on every instruction set") {
  // Each input is rounded at most 14 times on its way through the reference: by a constant, a product and 5
  // additions along an axis.
  constexpr int64_t tiles = 2, pitch = 23, points = 36;
  constexpr int64_t width = 4 * tiles + 2;
  const auto check = [&](const Matrix& l, auto from, auto to) {
    Matrix in(l[0].size(), std::vector<double>(l[0].size()));
    for (size_t i = 0; i < in.size(); ++i)
      for (size_t j = 0; j < in.size(); ++j) in[i][j] = from(i, j);
    const Matrix out = transform(l, in), size = transform(size_of(l), size_of(in));
    double worst = 0;
    for (size_t i = 0; i < out.size(); ++i)
      for (size_t j = 0; j < out.size(); ++j)
        worst = std::max(worst, std::abs(to(i, j) - out[i][j]) / (15 * kRoundoff * size[i][j]));
    CHECK(worst <= 1.0);
  };
  each_runnable(winograd_kernels(), [&](const WinogradKernel& kernel) {
    for (int64_t channels : {1, 16, 23}) {
      CAPTURE(channels);
      Buffer image(DType::f32, waves(6 * width * pitch, 1)),
          m(DType::f32, waves(points * tiles * pitch, 2));
      Buffer filters(DType::f32, waves(2 * 9 * pitch, 3));
      Buffer v(DType::f32, points * tiles * pitch), y(DType::f32, 4 * 4 * tiles * pitch),
          u(DType::f32, points * 2 * pitch);
      const auto floats = [](Buffer& b) { return static_cast<float*>(b.data()); };
      WinogradTiles t{.from = floats(image),
                      .to = floats(v),
                      .row = width * pitch,
                      .pixel = pitch,
                      .point = tiles * pitch,
                      .tile = pitch,
                      .tiles = tiles,
                      .channels = channels};
      kernel.f4.source(t);
      t.from = floats(m), t.to = floats(y), t.row = 4 * tiles * pitch;
      kernel.f4.output(t);
      kernel.f4.weight({.from = floats(filters),
                        .to = floats(u),
                        .filter = 9 * pitch,
                        .tap = pitch,
                        .point = 2 * pitch,
                        .row = pitch,
                        .filters = 2,
                        .columns = channels});
      for (const Buffer* b : {&v, &y, &u}) CHECK(b->guarded());
      const auto at = [&](Buffer& b, size_t row, size_t columns, size_t column, int64_t c) {
        return static_cast<double>(static_cast<float*>(
            b.data())[(row * columns + column) * pitch + static_cast<size_t>(c)]);
      };
      for (int64_t c = 0; c < channels; ++c)
        for (size_t tile = 0; tile < tiles; ++tile) {
          check(
              kF4.bt, [&](size_t i, size_t j) { return at(image, i, width, 4 * tile + j, c); },
              [&](size_t i, size_t j) { return at(v, 6 * i + j, tiles, tile, c); });
          check(
              kF4.at, [&](size_t i, size_t j) { return at(m, 6 * i + j, tiles, tile, c); },
              [&](size_t i, size_t j) { return at(y, i, 4 * tiles, 4 * tile + j, c); });
          check(
              kF4.g, [&](size_t i, size_t j) { return at(filters, tile, 9, 3 * i + j, c); },
              [&](size_t i, size_t j) { return at(u, 6 * i + j, 2, tile, c); });
        }
    }
  });
}

TEST_CASE("Rounding stays within Winograd's bound") {
  // Of `magnitude`, each output's terms are rounded by the transforms and at most once for each of C products
  // that are added up: with n such roundings an error of at most γ(n) = n·u / (1 - n·u) times the magnitude
  // [Higham, 3.1].
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
      const std::vector<double> expected = convolve(exact, pass, conv_reference, source, w);
      for (const Winograd* f : {&kF2, &kF4}) {
        const ConvKernel& engine = f == &kF2 ? conv_winograd : conv_winograd_4x4;
        check_within(convolve(p, pass, engine, source, w), expected,
                     magnitude(*f, q, source, forward ? w : turned(p, w)),
                     q.ic + f->bt_roundings + f->g_roundings + f->at_roundings);
      }
    }
    // Of the gradient of the weight, terms are rounded twice by the source's additions and twice by dy's,
    // at most once for each of the products of T tiles, and 4 times by the filter's: n = T + 8.
    if (!select_gemm_kernel(DType::f32).run_outer) continue;
    const std::vector<double> x = waves(p.n * p.ic * p.ih * p.iw, 2),
                              dy = waves(p.n * p.oc * p.oh * p.ow, 3);
    check_within(convolve_wgrad(p, conv_winograd, x, dy),
                 convolve_wgrad(exact, conv_reference, x, dy), wgrad_magnitude(kF2, p, x, dy),
                 p.n * ((p.oh + 1) / 2) * ((p.ow + 1) / 2) + 8);
  }
}

TEST_CASE("Winograd's error is no larger than that of plain sums") {
  // Root mean squares over a convolution of ResNet-50. Sums are shorter, their terms larger: measured were 0.6
  // of plain sums' error forward, where they add up 9 times as many terms, and 1.0 in the weight's gradient,
  // 1.4 with the tiles of SVE's 512 bits.
  const Case c{
      .n = 1, .groups = 1, .ic = 128, .oc = 32, .size = {14, 14}, .kernel = {3, 3}, .pad = {1, 1}};
  const ConvProblem p = c.problem(DType::f32, MemoryFormat::channels_last);
  const ConvProblem exact = c.problem(DType::f64, MemoryFormat::channels_last);
  const std::vector<double> x = waves(p.n * p.ic * p.ih * p.iw, 3), w = waves(p.oc * p.ic * 9, 4),
                            dy = waves(p.n * p.oc * p.oh * p.ow, 5);
  const auto compare = [&](double most, const auto& convolution) {
    const std::vector<double> expected = convolution(exact, conv_reference);
    const double winograd = error(convolution(p, conv_winograd), expected);
    const double plain = error(convolution(p, conv_brgemm), expected);
    CAPTURE(winograd);
    CAPTURE(plain);
    CHECK(winograd <= most * plain);
  };
  compare(1, [&](const ConvProblem& q, const ConvKernel& kernel) {
    return convolve(q, ConvPass::forward, kernel, x, w);
  });
  const GemmKernel& gemm = select_gemm_kernel(DType::f32);
  if (!gemm.run_outer) return;
  compare(gemm.scalable ? 1.5 : 1.1, [&](const ConvProblem& q, const ConvKernel& kernel) {
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
    const std::vector<double> expected = convolve(exact, ConvPass::forward, conv_reference, x, w);
    const double winograd =
        error(convolve(p, ConvPass::forward, conv_winograd_4x4, x, w), expected);
    const double plain = error(convolve(p, ConvPass::forward, conv_brgemm, x, w), expected);
    CAPTURE(winograd);
    CAPTURE(plain);
    CHECK(winograd <= 1e-6);
    CHECK(winograd <= (channels == 64 ? 2.5 : 1.5) * plain);
  }
}

TEST_CASE("Winograd is taken where it can and pays") {
  GemmKernel gemm = select_gemm_kernel(DType::f32);
  gemm.run_outer = gemm.run;  // not to be called
  const ConvKernel* engine = &conv_winograd;
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
  CHECK_EQ(reason(good, DType::f32, MemoryFormat::contiguous), "channels are not innermost");
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

  engine = &conv_winograd_4x4;
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
