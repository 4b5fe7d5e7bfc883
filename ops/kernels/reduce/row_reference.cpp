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
  explicit View(const Row& row) : row(row) {}
  const Row& row;
  double x(int64_t i) const { return static_cast<double>(static_cast<const T*>(row.x)[i]); }
  double dy(int64_t i) const { return static_cast<double>(static_cast<const T*>(row.dy)[i]); }
  double weight(int64_t i) const {
    return row.weight ? static_cast<double>(static_cast<const A*>(row.weight)[i]) : 1;
  }
  void y(int64_t i, double value) const { static_cast<T*>(row.y)[i] = static_cast<T>(value); }
  double out(int64_t i) const { return static_cast<double>(static_cast<const A*>(row.out)[i]); }
  void out(int64_t i, double value) const { static_cast<A*>(row.out)[i] = static_cast<A>(value); }

  double max() const {
    double largest = -std::numeric_limits<double>::infinity();
    for (int64_t i = 0; i < row.n; ++i)
      if (x(i) > largest || std::isnan(x(i))) largest = x(i);
    return largest;
  }
  double log_sum_exp(double shift) const {
    double sum = 0;
    for (int64_t i = 0; i < row.n; ++i) sum += std::exp(x(i) - shift);
    return std::log(sum);
  }
};

template <class T>
void sum(const Row& row) {
  const View<T> v(row);
  double total = 0;
  for (int64_t i = 0; i < row.n; ++i) total += v.x(i);
  v.out(0, total);
}

template <class T>
void sum_rows(const Row& row) {
  const View<T> v(row);
  for (int64_t i = 0; i < row.n; ++i) {
    double total = 0;
    for (int64_t r = 0; r < row.rows; ++r) total += v.x(r * row.stride + i);
    v.out(i, total);
  }
}

template <class T>
void max(const Row& row) {
  const View<T> v(row);
  const double largest = v.max();
  int64_t i = 0;
  while (!(v.x(i) == largest || std::isnan(v.x(i)))) ++i;
  v.out(0, largest);
  *row.index = i;
}

template <class T>
void softmax(const Row& row) {
  const View<T> v(row);
  const double shift = v.max(), log_sum = v.log_sum_exp(shift);
  for (int64_t i = 0; i < row.n; ++i) v.y(i, std::exp(v.x(i) - shift - log_sum));
}

template <class T>
void softmax_backward(const Row& row) {
  const View<T> v(row);
  double dot = 0;
  for (int64_t i = 0; i < row.n; ++i) dot += v.dy(i) * v.x(i);
  for (int64_t i = 0; i < row.n; ++i) v.y(i, v.x(i) * (v.dy(i) - dot));
}

template <class T>
void log_softmax(const Row& row) {
  const View<T> v(row);
  const double shift = v.max(), log_sum = v.log_sum_exp(shift);
  for (int64_t i = 0; i < row.n; ++i) v.y(i, v.x(i) - shift - log_sum);
}

template <class T>
void log_softmax_backward(const Row& row) {
  const View<T> v(row);
  double total = 0;
  for (int64_t i = 0; i < row.n; ++i) total += v.dy(i);
  for (int64_t i = 0; i < row.n; ++i) v.y(i, v.dy(i) - std::exp(v.x(i)) * total);
}

template <class T>
void log_sum_exp(const Row& row) {
  const View<T> v(row);
  const double shift = v.max();
  v.out(0, shift);
  v.out(1, v.log_sum_exp(shift));
}

template <class T>
void cross_entropy_backward(const Row& row) {
  const View<T> v(row);
  for (int64_t i = 0; i < row.n; ++i) {
    const double p = std::exp(v.x(i) - v.out(0) - v.out(1));
    v.y(i, row.a * p - row.b * v.weight(i) - (i == row.target ? row.c : 0));
  }
}

constexpr RowKernel kRecords[] = {
#define QUERN_ROW(op)                                                         \
  {QUERN_NAMED(#op "_f32"), kIsa, RowOp::op, DType::f32, op<float>},          \
      {QUERN_NAMED(#op "_bf16"), kIsa, RowOp::op, DType::bf16, op<bfloat16>}, \
      {QUERN_NAMED(#op "_f64"), kIsa, RowOp::op, DType::f64, op<double>},
#include "quern/ops/kernels/reduce/ops.inc"
};

}  // namespace

QUERN_KERNELS(RowKernel, row, kRecords)

}  // namespace quern::kernels
