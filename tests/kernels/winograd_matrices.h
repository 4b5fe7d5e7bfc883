// The matrices of Winograd's convolutions, in f64.
#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

namespace quern::test {

using Matrix = std::vector<std::vector<double>>;

inline Matrix product(const Matrix& a, const Matrix& b) {
  Matrix c(a.size(), std::vector<double>(b[0].size()));
  for (size_t i = 0; i < a.size(); ++i)
    for (size_t j = 0; j < b[0].size(); ++j)
      for (size_t k = 0; k < b.size(); ++k) c[i][j] += a[i][k] * b[k][j];
  return c;
}
inline Matrix transposed(const Matrix& a) {
  Matrix t(a[0].size(), std::vector<double>(a.size()));
  for (size_t i = 0; i < a.size(); ++i)
    for (size_t j = 0; j < a[0].size(); ++j) t[j][i] = a[i][j];
  return t;
}

/// The matrices of F(m×m, 3×3), and how often a term is rounded by them: a constant, each product
/// and each addition on its way, along both axes.
struct Winograd {
  int64_t m;
  Matrix bt, g, at;
  int64_t bt_roundings, g_roundings, at_roundings;
};

inline const Winograd kF2{.m = 2,
                          .bt = {{1, 0, -1, 0}, {0, 1, 1, 0}, {0, -1, 1, 0}, {0, 1, 0, -1}},
                          .g = {{1, 0, 0}, {.5, .5, .5}, {.5, -.5, .5}, {0, 0, 1}},
                          .at = {{1, 1, 1, 0}, {0, 1, -1, -1}},
                          .bt_roundings = 2,
                          .g_roundings = 4,
                          .at_roundings = 4};

/// On the points 0, ±2/3, ±3/2 and ∞: powers of the points in Aᵀ, and in G over Π (point - other
/// points); coefficients of the products of (x - other points) in Bᵀ [Lavin & Gray, 5.1].
inline const Winograd kF4 = [] {
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
inline Matrix size_of(Matrix m) {
  for (auto& row : m)
    for (double& v : row) v = std::abs(v);
  return m;
}
/// l·m·lᵀ
inline Matrix transform(const Matrix& l, const Matrix& m) {
  return product(product(l, m), transposed(l));
}

}  // namespace quern::test
