// The f32 and bf16 kernels on vectors of xsimd: one source, compiled once an instruction set. A sum
// is taken in blocks, each in four vectors, so that its error grows with the number of blocks plus
// kBlock / (4·width), not with n.
#pragma once
#include "quern/ops/kernels/math.h"
#include "quern/ops/kernels/reduce/row_records.h"

namespace quern::kernels {
namespace {

constexpr float kInfinity = __builtin_inff();

template <class T>
const T* elements(const void* p) {
  return static_cast<const T*>(p);
}

template <class Arch>
struct Vectors {
  using F = Vec<float, Arch>;
  static constexpr int64_t width = kLanes<float, Arch>;
  static constexpr int64_t kBlock = 4096;  // elements; a multiple of 4·width

  /// The n elements at p, n at most a vector, then `fill`; the compiler drops the branch where n is
  /// the constant width.
  template <class T>
  static F take(const T* p, int64_t n, float fill = 0) {
    return n == width ? load<Arch>(p) : load_n<Arch>(p, n, F(fill));
  }

  /// y[i] = f(i, n) for vectors of n elements from i on: whole ones, then the rest.
  template <class T, class Value>
  static void map(int64_t n, T* y, Value f) {
    int64_t i = 0;
    for (; i + width <= n; i += width) store<Arch>(y + i, f(i, width));
    if (i < n) store_n<Arch>(y + i, f(i, n - i), n - i);
  }

  /// Σ term(i, n): lanes from n on must be 0.
  template <class Term>
  static float sum(int64_t n, Term term) {
    float total = 0;
    for (int64_t begin = 0; begin < n; begin += kBlock) {
      const int64_t end = n < begin + kBlock ? n : begin + kBlock;
      F s[4] = {F(0.0f), F(0.0f), F(0.0f), F(0.0f)};
      int64_t i = begin;
      for (; i + 4 * width <= end; i += 4 * width)
        for (int64_t k = 0; k < 4; ++k) s[k] += term(i + k * width, width);
      for (; i + width <= end; i += width) s[0] += term(i, width);
      if (i < end) s[1] += term(i, end - i);
      total += across((s[0] + s[1]) + (s[2] + s[3]), [](float a, float b) { return a + b; });
    }
    return total;
  }

  /// A NaN is larger than all.
  template <class T>
  static float max(int64_t n, const T* x) {
    const auto larger = [](F a, F b) { return xsimd::select((a > b) | xsimd::isnan(a), a, b); };
    F m[2] = {F(-kInfinity), F(-kInfinity)};
    int64_t i = 0;
    for (; i + 2 * width <= n; i += 2 * width)
      for (int64_t k = 0; k < 2; ++k) m[k] = larger(m[k], load<Arch>(x + i + k * width));
    for (; i < n; i += width)
      m[0] = larger(m[0], take(x + i, n - i < width ? n - i : width, -kInfinity));
    return across(larger(m[0], m[1]), [](float a, float b) { return a > b || a != a ? a : b; });
  }

  /// Combines the lanes, pairwise.
  template <class Combine>
  static float across(F v, Combine combine) {
    float lane[width];
    store<Arch>(lane, v);
    for (int64_t half = width / 2; half > 0; half /= 2)
      for (int64_t i = 0; i < half; ++i) lane[i] = combine(lane[i], lane[i + half]);
    return lane[0];
  }

  struct ExpSum {
    float shift, sum;  // Σ exp(x[i] - shift), shift = max x[i]
  };
  template <class T>
  static ExpSum exp_sum(int64_t n, const T* x) {
    const float largest = max(n, x);
    const F shift(largest);
    return {largest, sum(n, [=](int64_t i, int64_t m) {
              return Math<Arch>::exp(take(x + i, m, -kInfinity) - shift);
            })};
  }
  static float log(float x) {
    float lane[width];
    store<Arch>(lane, Math<Arch>::log(F(x)));
    return lane[0];
  }
};

template <class Arch, class T>
void sum(const Row& row) {
  using V = Vectors<Arch>;
  const T* x = elements<T>(row.x);
  *static_cast<float*>(row.out) =
      V::sum(row.n, [=](int64_t i, int64_t n) { return V::take(x + i, n); });
}

/// Columns in strips of four vectors, which stay in registers while the rows go by.
template <class Arch, class T>
void sum_rows(const Row& row) {
  using V = Vectors<Arch>;
  using F = typename V::F;
  const T* x = elements<T>(row.x);
  float* out = static_cast<float*>(row.out);
  int64_t i = 0;
  for (; i + 4 * V::width <= row.n; i += 4 * V::width) {
    F s[4] = {F(0.0f), F(0.0f), F(0.0f), F(0.0f)};
    for (int64_t r = 0; r < row.rows; ++r)
      for (int64_t k = 0; k < 4; ++k) s[k] += load<Arch>(x + r * row.stride + i + k * V::width);
    for (int64_t k = 0; k < 4; ++k) store<Arch>(out + i + k * V::width, s[k]);
  }
  V::map(row.n - i, out + i, [=](int64_t j, int64_t n) {
    F s(0.0f);
    for (int64_t r = 0; r < row.rows; ++r) s += V::take(x + r * row.stride + i + j, n);
    return s;
  });
}

template <class Arch, class T>
void max(const Row& row) {
  using V = Vectors<Arch>;
  using F = typename V::F;
  const T* x = elements<T>(row.x);
  const float largest = V::max(row.n, x);
  *static_cast<float*>(row.out) = largest;

  int64_t i = 0;  // the vector it is in, then the lane
  const auto has = [=](F v) { return xsimd::any((v == F(largest)) | xsimd::isnan(v)); };
  while (i + V::width <= row.n && !has(load<Arch>(x + i))) i += V::width;
  float lane[V::width];
  const int64_t rest = row.n - i;
  store<Arch>(lane, V::take(x + i, rest < V::width ? rest : V::width));
  int64_t k = 0;
  while (!(lane[k] == largest || lane[k] != lane[k])) ++k;
  *row.index = i + k;
}

template <class Arch, class T>
void softmax(const Row& row) {
  using V = Vectors<Arch>;
  const T* x = elements<T>(row.x);
  const auto stats = V::exp_sum(row.n, x);
  const typename V::F shift(stats.shift), scale(1.0f / stats.sum);
  V::map(row.n, static_cast<T*>(row.y),
         [=](int64_t i, int64_t n) { return Math<Arch>::exp(V::take(x + i, n) - shift) * scale; });
}

template <class Arch, class T>
void softmax_backward(const Row& row) {
  using V = Vectors<Arch>;
  const T *y = elements<T>(row.x), *dy = elements<T>(row.dy);
  const typename V::F dot(
      V::sum(row.n, [=](int64_t i, int64_t n) { return V::take(y + i, n) * V::take(dy + i, n); }));
  V::map(row.n, static_cast<T*>(row.y),
         [=](int64_t i, int64_t n) { return V::take(y + i, n) * (V::take(dy + i, n) - dot); });
}

template <class Arch, class T>
void log_softmax(const Row& row) {
  using V = Vectors<Arch>;
  const T* x = elements<T>(row.x);
  const auto stats = V::exp_sum(row.n, x);
  const typename V::F shift(stats.shift), log_sum(V::log(stats.sum));
  V::map(row.n, static_cast<T*>(row.y),
         [=](int64_t i, int64_t n) { return (V::take(x + i, n) - shift) - log_sum; });
}

template <class Arch, class T>
void log_softmax_backward(const Row& row) {
  using V = Vectors<Arch>;
  const T *y = elements<T>(row.x), *dy = elements<T>(row.dy);
  const typename V::F total(
      V::sum(row.n, [=](int64_t i, int64_t n) { return V::take(dy + i, n); }));
  V::map(row.n, static_cast<T*>(row.y), [=](int64_t i, int64_t n) {
    return V::take(dy + i, n) - Math<Arch>::exp(V::take(y + i, n)) * total;
  });
}

template <class Arch, class T>
void log_sum_exp(const Row& row) {
  using V = Vectors<Arch>;
  const auto stats = V::exp_sum(row.n, elements<T>(row.x));
  float* out = static_cast<float*>(row.out);
  out[0] = stats.shift;
  out[1] = V::log(stats.sum);
}

template <class Arch, class T>
void cross_entropy_backward(const Row& row) {
  using V = Vectors<Arch>;
  using F = typename V::F;
  const T* x = elements<T>(row.x);
  T* dx = static_cast<T*>(row.y);
  const float *out = elements<float>(row.out), *weight = elements<float>(row.weight);
  const F shift(out[0]), log_sum(out[1]);
  const F a(static_cast<float>(row.a)), b(static_cast<float>(row.b)), c(static_cast<float>(row.c));
  const auto gradient = [=](int64_t i, int64_t n) {
    const F p = Math<Arch>::exp((V::take(x + i, n) - shift) - log_sum);
    return a * p - (weight ? b * V::take(weight + i, n) : b);
  };
  const int64_t target = row.target;  // done first: dx may be x
  const F at_target = target < 0 ? F(0.0f) : gradient(target, 1) - c;
  V::map(row.n, dx, gradient);
  if (target >= 0) store_n<Arch>(dx + target, at_target, 1);
}

}  // namespace
}  // namespace quern::kernels
