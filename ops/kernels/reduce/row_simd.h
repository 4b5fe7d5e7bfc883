// The f32 and bf16 kernels on vectors of xsimd: one source, compiled once an instruction set.
#pragma once
#include "quern/ops/kernels/math.h"
#include "quern/ops/kernels/reduce/row_kernel.h"

namespace quern::kernels {
namespace {

constexpr float kInfinity = __builtin_inff();

/// Combines `count` lanes: the lower half of them with the upper, and so on.
template <int64_t count, class Combine, int... i>
float across(typename Native<float, count>::type v, Combine combine,
             std::integer_sequence<int, i...>) {
  constexpr int64_t half = count / 2;
  const typename Native<float, half>::type upper = __builtin_shufflevector(v, v, (half + i)...);
  const auto both = combine(__builtin_shufflevector(v, v, i...), upper);
  if constexpr (half == 2) return combine(both[0], both[1]);
  else return across<half>(both, combine, std::make_integer_sequence<int, half / 2>{});
}
template <class Combine>
float across(Vec<float> v, Combine combine) {
  constexpr int64_t width = kLanes<float>;
  return across<width>(v.data, combine, std::make_integer_sequence<int, width / 2>{});
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
    total += across((s[0] + s[1]) + (s[2] + s[3]), [](auto a, auto b) { return a + b; });
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
  return across(larger(m[0], m[1]), [](auto a, auto b) { return ((a > b) | (a != a)) ? a : b; });
}

/// The same of what is about to be exponentiated, whose sum tells of a NaN: they may count or not.
template <class T>
float shift_of(int64_t n, const T* x) {
  using F = Vec<float>;
  F m[2] = {F(-kInfinity), F(-kInfinity)};
  each_vector<T, 2>(n, [&](int64_t i, int k, auto lanes) {
    m[k] = xsimd::max(m[k], lanes.load(x + i, F(-kInfinity)));
  });
  return across(xsimd::max(m[0], m[1]), [](auto a, auto b) { return a > b ? a : b; });
}

// Of several rows, each step is done for all before the next, which waits for its result: shifts,
// sums, what comes of them.

/// f(r, the beginnings of row r in x, dy and y) for all rows.
template <class T, class F>
void each_row(const Row& rows, F f) {
  for (int64_t r = 0; r < rows.count; ++r) {
    const auto of_row = [&](auto* first) { return first ? first + r * rows.n : nullptr; };
    f(r, of_row(static_cast<const T*>(rows.x)), of_row(static_cast<const T*>(rows.dy)),
      of_row(static_cast<T*>(rows.y)));
  }
}
/// What a step finds of each row.
using OfRows = float[kRowsAtOnce];

template <class T>
void find_shifts(const Row& rows, OfRows& shifts) {
  each_row<T>(rows, [&](int64_t r, const T* x, auto, auto) { shifts[r] = shift_of(rows.n, x); });
}
/// log Σ exp(x[i] - shift)
template <class T>
void find_log_sums(const Row& rows, const OfRows& shifts, OfRows& log_sums) {
  using F = Vec<float>;
  OfRows sums;
  each_row<T>(rows, [&](int64_t r, const T* x, auto, auto) {
    const F shift(shifts[r]);
    sums[r] = sum_of(rows.n, [=](int64_t i, auto lanes) {
      return Math::exp(lanes.load(x + i, F(-kInfinity)) - shift);
    });
  });
  each_vector<float>(rows.count, [&](int64_t r, int, auto lanes) {
    lanes.store(log_sums + r, Math::log(lanes.load(sums + r)));
  });
}

template <class T>
void sum(const Row& rows) {
  float* out = static_cast<float*>(rows.out);
  each_row<T>(rows, [&](int64_t r, const T* x, auto, auto) {
    out[r] = sum_of(rows.n, [=](int64_t i, auto lanes) { return lanes.load(x + i); });
  });
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

/// The first place of the largest of n, or of a NaN.
template <class T>
int64_t place_of(int64_t n, const T* x, float largest) {
  using F = Vec<float>;
  constexpr int64_t width = kLanes<T>;
  constexpr float numbers[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const auto found = [=](F v) { return (v == F(largest)) | xsimd::isnan(v); };
  int64_t i = 0;
  while (i + width <= n && !xsimd::any(found(load(x + i)))) i += width;
  // Where all are -∞ lanes beyond n are as large, but not the first.
  const F v = i + width <= n ? load(x + i) : FirstLanes{n - i}.load(x + i, F(-kInfinity));
  const F lane = xsimd::select(found(v), load(numbers), F(static_cast<float>(width)));
  return i + static_cast<int64_t>(across(lane, [](auto a, auto b) { return a < b ? a : b; }));
}

template <class T>
void max(const Row& rows) {
  float* largest = static_cast<float*>(rows.out);
  each_row<T>(rows, [&](int64_t r, const T* x, auto, auto) { largest[r] = max_of(rows.n, x); });
  each_row<T>(rows, [&](int64_t r, const T* x, auto, auto) {
    rows.index[r] = place_of(rows.n, x, largest[r]);
  });
}

/// exp(x - shift) of all rows, or of what a long one begins with, is kept from the step that adds
/// it up.
template <class T>
void softmax(const Row& rows) {
  using F = Vec<float>;
  const int64_t n = rows.n;
  float kept[kRowsElements];  // 16 KiB, in L1
  OfRows shifts, sums;
  find_shifts<T>(rows, shifts);
  each_row<T>(rows, [&](int64_t r, const T* x, auto, auto) {
    const F shift(shifts[r]);
    sums[r] = sum_of(n, [&, to = kept + r * n](int64_t i, auto lanes) {
      const F e = Math::exp(lanes.load(x + i, F(-kInfinity)) - shift);
      if (i < kRowsElements) lanes.store(to + i, e);
      return e;
    });
  });
  each_row<T>(rows, [&](int64_t r, const T* x, auto, T* y) {
    const F shift(shifts[r]), scale(1.0f / sums[r]);
    each_vector<T>(n, [&, from = kept + r * n](int64_t i, int, auto lanes) {
      const F e = i < kRowsElements ? lanes.load(from + i) : Math::exp(lanes.load(x + i) - shift);
      lanes.store(y + i, e * scale);
    });
  });
}

template <class T>
void softmax_backward(const Row& rows) {
  OfRows dots;
  each_row<T>(rows, [&](int64_t r, const T* y, const T* dy, auto) {
    dots[r] = sum_of(rows.n,
                     [=](int64_t i, auto lanes) { return lanes.load(y + i) * lanes.load(dy + i); });
  });
  each_row<T>(rows, [&](int64_t r, const T* y, const T* dy, T* dx) {
    const Vec<float> dot(dots[r]);
    each_vector<T>(rows.n, [=](int64_t i, int, auto lanes) {
      lanes.store(dx + i, lanes.load(y + i) * (lanes.load(dy + i) - dot));
    });
  });
}

template <class T>
void log_softmax(const Row& rows) {
  OfRows shifts, log_sums;
  find_shifts<T>(rows, shifts);
  find_log_sums<T>(rows, shifts, log_sums);
  each_row<T>(rows, [&](int64_t r, const T* x, auto, T* y) {
    const Vec<float> shift(shifts[r]), log_sum(log_sums[r]);
    each_vector<T>(rows.n, [=](int64_t i, int, auto lanes) {
      lanes.store(y + i, (lanes.load(x + i) - shift) - log_sum);
    });
  });
}

template <class T>
void log_softmax_backward(const Row& rows) {
  OfRows totals;
  each_row<T>(rows, [&](int64_t r, auto, const T* dy, auto) {
    totals[r] = sum_of(rows.n, [=](int64_t i, auto lanes) { return lanes.load(dy + i); });
  });
  each_row<T>(rows, [&](int64_t r, const T* y, const T* dy, T* dx) {
    const Vec<float> total(totals[r]);
    each_vector<T>(rows.n, [=](int64_t i, int, auto lanes) {
      lanes.store(dx + i, lanes.load(dy + i) - Math::exp(lanes.load(y + i)) * total);
    });
  });
}

template <class T>
void log_sum_exp(const Row& rows) {
  OfRows shifts, log_sums;
  find_shifts<T>(rows, shifts);
  find_log_sums<T>(rows, shifts, log_sums);
  float* out = static_cast<float*>(rows.out);
  for (int64_t r = 0; r < rows.count; ++r) out[2 * r] = shifts[r], out[2 * r + 1] = log_sums[r];
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
