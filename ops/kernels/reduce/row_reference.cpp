// The definition of every row function: the oracle of the vector kernels and the last candidate of
// dispatch. Everything is computed in double, whatever the dtype, and rounded once.
#include <cmath>
#include <limits>

#include "quern/ops/kernels/accumulator.h"
#include "quern/ops/kernels/reduce/row_kernel.h"
#include "quern/tensor/bfloat16.h"

namespace quern::kernels {
namespace {

/// The arguments of a row by name, as double in and T out.
template <class T>
struct View {
  using A = Accumulator<T>;
  const Row& row;
  double x(int64_t i) const { return static_cast<double>(static_cast<const T*>(row.x)[i]); }
  double dy(int64_t i) const { return static_cast<double>(static_cast<const T*>(row.dy)[i]); }
  double weight(int64_t i) const {
    return row.weight ? static_cast<double>(static_cast<const A*>(row.weight)[i]) : 1;
  }
  void y(int64_t i, double value) const { static_cast<T*>(row.y)[i] = static_cast<T>(value); }
  double out(int64_t i) const { return static_cast<double>(static_cast<const A*>(row.out)[i]); }
  void out(int64_t i, double value) const { static_cast<A*>(row.out)[i] = static_cast<A>(value); }

  template <class Term>
  double sum(Term term) const {
    double total = 0;
    for (int64_t i = 0; i < row.n; ++i) total += term(i);
    return total;
  }
  template <class F>
  void set(F f) const {
    for (int64_t i = 0; i < row.n; ++i) y(i, f(i));
  }
  double max() const {
    double largest = -std::numeric_limits<double>::infinity();
    for (int64_t i = 0; i < row.n; ++i)
      if (x(i) > largest || std::isnan(x(i))) largest = x(i);
    return largest;
  }
  double log_sum_exp(double shift) const {
    return std::log(sum([&](int64_t i) { return std::exp(x(i) - shift); }));
  }
};

template <class T>
void sum(View<T> v) {
  v.out(0, v.sum([&](int64_t i) { return v.x(i); }));
}
template <class T>
void sum_rows(View<T> v) {
  for (int64_t i = 0; i < v.row.n; ++i) {
    double total = 0;
    for (int64_t r = 0; r < v.row.rows; ++r) total += v.x(r * v.row.stride + i);
    v.out(i, total);
  }
}
template <class T>
void max(View<T> v) {
  const double largest = v.max();
  int64_t i = 0;
  while (!(v.x(i) == largest || std::isnan(v.x(i)))) ++i;
  v.out(0, largest);
  *v.row.index = i;
}
template <class T>
void softmax(View<T> v) {
  const double shift = v.max(), log_sum = v.log_sum_exp(shift);
  v.set([&](int64_t i) { return std::exp(v.x(i) - shift - log_sum); });
}
template <class T>
void softmax_backward(View<T> v) {
  const double dot = v.sum([&](int64_t i) { return v.dy(i) * v.x(i); });
  v.set([&](int64_t i) { return v.x(i) * (v.dy(i) - dot); });
}
template <class T>
void log_softmax(View<T> v) {
  const double shift = v.max(), log_sum = v.log_sum_exp(shift);
  v.set([&](int64_t i) { return v.x(i) - shift - log_sum; });
}
template <class T>
void log_softmax_backward(View<T> v) {
  const double total = v.sum([&](int64_t i) { return v.dy(i); });
  v.set([&](int64_t i) { return v.dy(i) - std::exp(v.x(i)) * total; });
}
template <class T>
void log_sum_exp(View<T> v) {
  const double shift = v.max();
  v.out(0, shift);
  v.out(1, v.log_sum_exp(shift));
}
template <class T>
void cross_entropy_backward(View<T> v) {
  const Row& row = v.row;
  v.set([&](int64_t i) {
    const double p = std::exp(v.x(i) - v.out(0) - v.out(1));
    return row.a * p - row.b * v.weight(i) - (i == row.target ? row.c : 0);
  });
}

template <class T, auto f>
void on(const Row& rows) {
  constexpr int64_t results = f == log_sum_exp<T> ? 2 : 1;
  Row row = rows;
  for (int64_t r = 0; r < rows.count; ++r) {
    const auto of_row = [&](auto* first) { return first ? first + r * row.n : nullptr; };
    row.x = of_row(static_cast<const T*>(rows.x)), row.dy = of_row(static_cast<const T*>(rows.dy));
    row.y = of_row(static_cast<T*>(rows.y));
    row.out = rows.out ? static_cast<Accumulator<T>*>(rows.out) + r * results : nullptr;
    row.index = rows.index ? rows.index + r : nullptr;
    f(View<T>{row});
  }
}

constexpr RowKernel kRecords[] = {
#define QUERN_RECORD(op, T, dtype) \
  {QUERN_NAMED(#op "_" #dtype), kIsa, RowOp::op, DType::dtype, on<T, op<T>>},
#define QUERN_ROW(op)              \
  QUERN_RECORD(op, float, f32)     \
  QUERN_RECORD(op, bfloat16, bf16) \
  QUERN_RECORD(op, double, f64)
#include "quern/ops/kernels/reduce/ops.inc"
};

}  // namespace

QUERN_KERNELS(RowKernel, row, kRecords)

}  // namespace quern::kernels
