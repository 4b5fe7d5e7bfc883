// The f32 and bf16 kernels on vectors of xsimd: one source, compiled once an instruction set.
#pragma once
#include "quern/ops/kernels/math.h"
#include "quern/ops/kernels/reduce/row_kernel.h"

namespace quern::kernels {
namespace {

constexpr float kInfinity = __builtin_inff();

/// Combines the lanes, pairwise.
template <class Combine>
float across(Vec<float> v, Combine combine) {
  constexpr int64_t width = kLanes<float>;
  float lane[width];
  store(lane, v);
  for (int64_t half = width / 2; half > 0; half /= 2)
    for (int64_t i = 0; i < half; ++i) lane[i] = combine(lane[i], lane[i + half]);
  return lane[0];
}

/// Σ term(i, lanes) over the vectors of 0..n-1; lanes beyond n must be 0. In blocks, each in four
/// vectors, so that the error grows with kBlock/(4·width) plus the number of blocks, not with n.
template <class Term>
float sum_of(int64_t n, Term term) {
  using F = Vec<float>;
  constexpr int64_t kBlock = 4096;  // elements; a multiple of 4·width
  float total = 0;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t size = n - begin < kBlock ? n - begin : kBlock;
    F s[4] = {F(0.0f), F(0.0f), F(0.0f), F(0.0f)};
    each_vector<float, 4>(size,
                          [&](int64_t i, int k, auto lanes) { s[k] += term(begin + i, lanes); });
    total += across((s[0] + s[1]) + (s[2] + s[3]), [](float a, float b) { return a + b; });
  }
  return total;
}

/// A NaN is larger than all.
template <class T>
float max_of(int64_t n, const T* x) {
  using F = Vec<float>;
  const auto larger = [](F a, F b) { return xsimd::select((a > b) | xsimd::isnan(a), a, b); };
  F m[2] = {F(-kInfinity), F(-kInfinity)};
  each_vector<T, 2>(n, [&](int64_t i, int k, auto lanes) {
    m[k] = larger(m[k], lanes.load(x + i, F(-kInfinity)));
  });
  return across(larger(m[0], m[1]), [](float a, float b) { return a > b || a != a ? a : b; });
}

struct ExpSum {
  float shift, sum;  // max x[i], Σ exp(x[i] - shift)
};
template <class T>
ExpSum exp_sum(int64_t n, const T* x) {
  using F = Vec<float>;
  const float largest = max_of(n, x);
  const F shift(largest);
  return {largest, sum_of(n, [=](int64_t i, auto lanes) {
            return Math::exp(lanes.load(x + i, F(-kInfinity)) - shift);
          })};
}

float log_of(float x) {
  float lane[kLanes<float>];
  store(lane, Math::log(Vec<float>(x)));
  return lane[0];
}

template <class T>
void sum(const Row& row) {
  const T* x = static_cast<const T*>(row.x);
  *static_cast<float*>(row.out) =
      sum_of(row.n, [=](int64_t i, auto lanes) { return lanes.load(x + i); });
}

/// Columns in strips of four vectors, which stay in registers while the rows go by.
template <class T>
void sum_rows(const Row& row) {
  using F = Vec<float>;
  constexpr int64_t width = kLanes<T>;
  const T* x = static_cast<const T*>(row.x);
  float* out = static_cast<float*>(row.out);
  int64_t begin = 0;
  for (; begin + 4 * width <= row.n; begin += 4 * width) {
    F s[4] = {F(0.0f), F(0.0f), F(0.0f), F(0.0f)};
    for (int64_t r = 0; r < row.rows; ++r)
      unroll<4>([&](int k) { s[k] += load(x + r * row.stride + begin + k * width); });
    unroll<4>([&](int k) { store(out + begin + k * width, s[k]); });
  }
  each_vector<T>(row.n - begin, [&](int64_t i, int, auto lanes) {
    F s(0.0f);
    for (int64_t r = 0; r < row.rows; ++r) s += lanes.load(x + r * row.stride + begin + i);
    lanes.store(out + begin + i, s);
  });
}

template <class T>
void max(const Row& row) {
  using F = Vec<float>;
  constexpr int64_t width = kLanes<T>;
  const T* x = static_cast<const T*>(row.x);
  const float largest = max_of(row.n, x);
  *static_cast<float*>(row.out) = largest;

  int64_t i = 0;  // the vector it is in, then the lane
  const auto has = [=](F v) { return xsimd::any((v == F(largest)) | xsimd::isnan(v)); };
  while (i + width <= row.n && !has(load(x + i))) i += width;
  float lane[width];
  store(lane, i + width <= row.n ? load(x + i) : load_n(x + i, row.n - i));
  int64_t k = 0;
  while (!(lane[k] == largest || lane[k] != lane[k])) ++k;
  *row.index = i + k;
}

/// exp(x - shift) of what a row begins with is kept from the pass that adds it up.
template <class T>
void softmax(const Row& row) {
  using F = Vec<float>;
  constexpr int64_t kKept = 4096;  // 16 KiB, in L1
  const T* x = static_cast<const T*>(row.x);
  T* y = static_cast<T*>(row.y);
  float kept[kKept];
  const F shift(max_of(row.n, x));
  const F scale(1.0f / sum_of(row.n, [&](int64_t i, auto lanes) {
                  const F e = Math::exp(lanes.load(x + i, F(-kInfinity)) - shift);
                  if (i < kKept) lanes.store(kept + i, e);
                  return e;
                }));
  each_vector<T>(row.n, [&](int64_t i, int, auto lanes) {
    const F e = i < kKept ? lanes.load(kept + i) : Math::exp(lanes.load(x + i) - shift);
    lanes.store(y + i, e * scale);
  });
}

template <class T>
void softmax_backward(const Row& row) {
  const T *y = static_cast<const T*>(row.x), *dy = static_cast<const T*>(row.dy);
  T* dx = static_cast<T*>(row.y);
  const Vec<float> dot(
      sum_of(row.n, [=](int64_t i, auto lanes) { return lanes.load(y + i) * lanes.load(dy + i); }));
  each_vector<T>(row.n, [=](int64_t i, int, auto lanes) {
    lanes.store(dx + i, lanes.load(y + i) * (lanes.load(dy + i) - dot));
  });
}

template <class T>
void log_softmax(const Row& row) {
  const T* x = static_cast<const T*>(row.x);
  T* y = static_cast<T*>(row.y);
  const ExpSum stats = exp_sum(row.n, x);
  const Vec<float> shift(stats.shift), log_sum(log_of(stats.sum));
  each_vector<T>(row.n, [=](int64_t i, int, auto lanes) {
    lanes.store(y + i, (lanes.load(x + i) - shift) - log_sum);
  });
}

template <class T>
void log_softmax_backward(const Row& row) {
  const T *y = static_cast<const T*>(row.x), *dy = static_cast<const T*>(row.dy);
  T* dx = static_cast<T*>(row.y);
  const Vec<float> total(sum_of(row.n, [=](int64_t i, auto lanes) { return lanes.load(dy + i); }));
  each_vector<T>(row.n, [=](int64_t i, int, auto lanes) {
    lanes.store(dx + i, lanes.load(dy + i) - Math::exp(lanes.load(y + i)) * total);
  });
}

template <class T>
void log_sum_exp(const Row& row) {
  const ExpSum stats = exp_sum(row.n, static_cast<const T*>(row.x));
  float* out = static_cast<float*>(row.out);
  out[0] = stats.shift;
  out[1] = log_of(stats.sum);
}

template <class T>
void cross_entropy_backward(const Row& row) {
  using F = Vec<float>;
  const T* x = static_cast<const T*>(row.x);
  T* dx = static_cast<T*>(row.y);
  const float* out = static_cast<const float*>(row.out);
  const float* weight = static_cast<const float*>(row.weight);
  const F shift(out[0]), log_sum(out[1]);
  const F a(static_cast<float>(row.a)), b(static_cast<float>(row.b)), c(static_cast<float>(row.c));
  const auto gradient = [=](int64_t i, auto lanes) {
    const F p = Math::exp((lanes.load(x + i) - shift) - log_sum);
    return a * p - (weight ? b * lanes.load(weight + i) : b);
  };
  const int64_t t = row.target;
  const FirstLanes one{1};
  const F at_target = t < 0 ? F(0.0f) : gradient(t, one) - c;  // done first: dx may be x
  each_vector<T>(row.n,
                 [=](int64_t i, int, auto lanes) { lanes.store(dx + i, gradient(i, lanes)); });
  if (t >= 0) one.store(dx + t, at_target);
}

constexpr RowKernel kRecords[] = {
#define QUERN_ROW(op)                                                \
  {QUERN_NAMED(#op "_f32"), kIsa, RowOp::op, DType::f32, op<float>}, \
      {QUERN_NAMED(#op "_bf16"), kIsa, RowOp::op, DType::bf16, op<bfloat16>},
#include "quern/ops/kernels/reduce/ops.inc"
};

}  // namespace

QUERN_KERNELS(RowKernel, row, kRecords)

}  // namespace quern::kernels
