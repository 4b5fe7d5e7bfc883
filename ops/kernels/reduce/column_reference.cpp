// The definition of every function of columns: the oracle of the vector kernels and the last
// candidate of dispatch. Everything is computed in double, whatever the dtype, and rounded once.
#include <cmath>

#include "quern/ops/kernels/reduce/column_kernel.h"
#include "quern/tensor/bfloat16.h"

namespace quern::kernels {
namespace {

/// A column, as double in and T out.
template <class T>
struct View {
  const Columns& all;
  int64_t i;
  double x(int64_t r) const { return at(all.x, r); }
  double dy(int64_t r) const { return at(all.dy, r); }
  void y(int64_t r, double value) const {
    static_cast<T*>(all.y)[r * all.stride + i] = static_cast<T>(value);
  }
  double at(const void* p, int64_t r) const {
    return static_cast<double>(static_cast<const T*>(p)[r * all.stride + i]);
  }
  template <class Term>
  double sum(Term term) const {
    double total = 0;
    for (int64_t r = 0; r < all.rows; ++r) total += term(r);
    return total;
  }
  template <class F>
  void set(F f) const {
    for (int64_t r = 0; r < all.rows; ++r) y(r, f(r));
  }
  int64_t place_of_max() const {
    int64_t place = 0;
    for (int64_t r = 1; r < all.rows; ++r)
      if (x(r) > x(place) || (std::isnan(x(r)) && !std::isnan(x(place)))) place = r;
    return place;
  }
  double log_sum_exp() const {
    const double shift = x(place_of_max());
    return shift + std::log(sum([&](int64_t r) { return std::exp(x(r) - shift); }));
  }
};

template <class T>
void max(View<T> c) {
  c.all.index[c.i] = c.place_of_max();
  c.y(0, c.x(c.all.index[c.i]));
}
template <class T>
void softmax(View<T> c) {
  const double total = c.log_sum_exp();
  c.set([&](int64_t r) { return std::exp(c.x(r) - total); });
}
template <class T>
void softmax_backward(View<T> c) {
  const double dot = c.sum([&](int64_t r) { return c.dy(r) * c.x(r); });
  c.set([&](int64_t r) { return c.x(r) * (c.dy(r) - dot); });
}
template <class T>
void log_softmax(View<T> c) {
  const double total = c.log_sum_exp();
  c.set([&](int64_t r) { return c.x(r) - total; });
}
template <class T>
void log_softmax_backward(View<T> c) {
  const double total = c.sum([&](int64_t r) { return c.dy(r); });
  c.set([&](int64_t r) { return c.dy(r) - std::exp(c.x(r)) * total; });
}

template <class T, auto f>
void each(const Columns& all) {
  for (int64_t i = 0; i < all.n; ++i) f(View<T>{all, i});
}

constexpr ColumnKernel kRecords[] = {
#define QUERN_RECORD(op, T, dtype) \
  {QUERN_NAMED(#op "_" #dtype), kIsa, ColumnOp::op, DType::dtype, each<T, op<T>>},
#define QUERN_COLUMN(op)           \
  QUERN_RECORD(op, float, f32)     \
  QUERN_RECORD(op, bfloat16, bf16) \
  QUERN_RECORD(op, double, f64)
#include "quern/ops/kernels/reduce/columns.inc"
};

}  // namespace

QUERN_KERNELS(ColumnKernel, column, kRecords)

}  // namespace quern::kernels
