// The f32 and bf16 kernels on vectors of xsimd: one source, compiled once an instruction set. Four
// vectors of columns at a time go down the rows, pass by pass; what the first pass has brought into
// the cache the others find there.
#pragma once
#include "quern/ops/kernels/columns_simd.h"
#include "quern/ops/kernels/math.h"
#include "quern/ops/kernels/reduce/column_kernel.h"

namespace quern::kernels {
namespace {

/// `count` vectors of columns, or a part of one.
template <class T, int count, class Lanes>
struct Strip {
  using F = Vec<float>;
  struct Values {
    F v[count];
    F& operator[](int k) { return v[k]; }
    const F& operator[](int k) const { return v[k]; }
  };

  const Columns& all;
  int64_t first;
  Lanes lanes;

  int64_t place(int64_t r, int k) const { return r * all.stride + first + k * kLanes<T>; }
  F x(int64_t r, int k) const { return lanes.load(static_cast<const T*>(all.x) + place(r, k)); }
  F dy(int64_t r, int k) const { return lanes.load(static_cast<const T*>(all.dy) + place(r, k)); }
  void y(int64_t r, int k, F value) const {
    lanes.store(static_cast<T*>(all.y) + place(r, k), value);
  }
  template <class Step>
  void down(int64_t begin, int64_t end, Step step) const {
    for (int64_t r = begin; r < end; ++r) unroll<count>([&](int k) { step(r, k); });
  }
  template <class Value>
  void set(Value value) const {
    down(0, all.rows, [&](int64_t r, int k) { y(r, k, value(r, k)); });
  }

  /// The largest, a NaN being larger than all, and the first row of it.
  void max(Values& largest, Values& row) const {
    unroll<count>([&](int k) { largest[k] = x(0, k), row[k] = F(0.0f); });
    down(1, all.rows, [&](int64_t r, int k) {
      const F v = x(r, k);
      const auto larger = (v > largest[k]) | (xsimd::isnan(v) & !xsimd::isnan(largest[k]));
      largest[k] = xsimd::select(larger, v, largest[k]);
      row[k] = xsimd::select(larger, F(static_cast<float>(r)), row[k]);
    });
  }
  Values largest() const {
    Values m;
    unroll<count>([&](int k) { m[k] = x(0, k); });
    down(1, all.rows, [&](int64_t r, int k) {
      const F v = x(r, k);
      m[k] = xsimd::select((m[k] > v) | xsimd::isnan(m[k]), m[k], v);
    });
    return m;
  }
  /// Σ term(r, k) in blocks, so that the error grows with kBlock plus the number of blocks.
  template <class Term>
  Values sum(Term term) const {
    constexpr int64_t kBlock = 256;
    Values total;
    unroll<count>([&](int k) { total[k] = F(0.0f); });
    for (int64_t begin = 0; begin < all.rows; begin += kBlock) {
      Values block;
      unroll<count>([&](int k) { block[k] = F(0.0f); });
      down(begin, all.rows - begin < kBlock ? all.rows : begin + kBlock,
           [&](int64_t r, int k) { block[k] += term(r, k); });
      unroll<count>([&](int k) { total[k] += block[k]; });
    }
    return total;
  }
};

struct Formula {
  using F = Vec<float>;

  template <class Strip>
  static void max(const Strip& s) {
    typename Strip::Values largest, row;
    s.max(largest, row);
    unroll<sizeof(largest) / sizeof(F)>([&](int k) {
      s.y(0, k, largest[k]);
      float rows[kLanes<float>];
      store(rows, row[k]);
      const int64_t at = s.place(0, k);
      for (int64_t i = 0; i < kLanes<float> && at + i < s.all.n; ++i)
        s.all.index[at + i] = static_cast<int64_t>(rows[i]);
    });
  }
  template <class Strip>
  static void softmax(const Strip& s) {
    const auto shift = s.largest();
    auto scale = s.sum([&](int64_t r, int k) { return Math::exp(s.x(r, k) - shift[k]); });
    for (F& v : scale.v) v = quotient(F(1.0f), v);
    s.set([&](int64_t r, int k) { return Math::exp(s.x(r, k) - shift[k]) * scale[k]; });
  }
  template <class Strip>
  static void softmax_backward(const Strip& s) {
    const auto dot = s.sum([&](int64_t r, int k) { return s.x(r, k) * s.dy(r, k); });
    s.set([&](int64_t r, int k) { return s.x(r, k) * (s.dy(r, k) - dot[k]); });
  }
  template <class Strip>
  static void log_softmax(const Strip& s) {
    const auto shift = s.largest();
    auto log_sum = s.sum([&](int64_t r, int k) { return Math::exp(s.x(r, k) - shift[k]); });
    for (F& v : log_sum.v) v = Math::log(v);
    s.set([&](int64_t r, int k) { return (s.x(r, k) - shift[k]) - log_sum[k]; });
  }
  template <class Strip>
  static void log_softmax_backward(const Strip& s) {
    const auto total = s.sum([&](int64_t r, int k) { return s.dy(r, k); });
    s.set([&](int64_t r, int k) { return s.dy(r, k) - Math::exp(s.x(r, k)) * total[k]; });
  }
};

#define QUERN_RECORD(op, T, dtype)                                                         \
  {QUERN_NAMED(#op "_" #dtype), kIsa, ColumnOp::op, DType::dtype, [](const Columns& all) { \
     each_columns<T>(all.n, [&]<class Count, class Lanes>(int64_t c, Count, Lanes lanes) { \
       Formula::op(Strip<T, Count::value, Lanes>{all, c, lanes});                          \
     });                                                                                   \
   }},
#define QUERN_COLUMN(op) QUERN_RECORD(op, float, f32) QUERN_RECORD(op, bfloat16, bf16)
constexpr ColumnKernel kRecords[] = {
#include "quern/ops/kernels/reduce/columns.inc"
};

}  // namespace

QUERN_KERNELS(ColumnKernel, column, kRecords)

}  // namespace quern::kernels
