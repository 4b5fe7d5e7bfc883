// The contract of an elementwise kernel: a run of n elements, y[i] = f(x[i]; p, q) or f(a[i], b[i];
// p, q). f32 and bf16 are computed in f32 and rounded once, f64 in f64, integers in their own type,
// modulo 2^bits.
// An element's result does not depend on its place in the run. y may be x, a or b themselves, but
// not overlap otherwise. Files compiled with ISA flags include this.
#pragma once
#include <cstdint>

#include "quern/ops/kernels/unit.h"

namespace quern::kernels {

enum class Unary : uint8_t {
#define QUERN_UNARY_NUMBER(op) op,
#define QUERN_UNARY_REAL(op) op,
#include "quern/ops/kernels/elementwise/ops.inc"
};

enum class Binary : uint8_t {
#define QUERN_BINARY_NUMBER(op) op,
#define QUERN_BINARY_REAL(op) op,
#include "quern/ops/kernels/elementwise/ops.inc"
};

enum class Comparison : uint8_t {
#define QUERN_COMPARISON(op) op,
#include "quern/ops/kernels/elementwise/ops.inc"
};

/// Runs of `size` elements: of y one after the other, of a dense operand `step` elements apart, 0
/// where one run serves all; of two dense operands one after the other, too.
struct Runs {
  int64_t size, count, step;
  constexpr Runs(int64_t n) : Runs(n, 1, n) {}
  constexpr Runs(int64_t n, int64_t runs, int64_t step) : size(n), count(runs), step(step) {}
  constexpr int64_t elements() const { return size * count; }
};

/// Which operand of binary runs is one value for all of a run: a pointer to values, one a run, of
/// the type computed in (floats for bf16), so that a number need not be rounded to the elements'
/// dtype.
enum class Run : uint8_t { dense_dense, scalar_dense, dense_scalar };

struct UnaryKernel {
  const char* name;  // <op>_<dtype>_<isa>; the naive one ends in _reference
  Isa isa;
  Unary op;
  DType dtype;
  void (*run)(int64_t n, const void* x, void* y, double p, double q);
};

struct BinaryKernel {
  const char* name;
  Isa isa;
  Binary op;
  DType dtype;
  void (*run)(const Runs& n, const void* a, const void* b, void* y, Run mode, double p, double q);
};

/// y[i] = a[i] op b[i], of operands as BinaryKernel's. NaN is unequal to all.
struct ComparisonKernel {
  const char* name;
  Isa isa;
  Comparison op;
  DType dtype;  // of a and b
  void (*run)(const Runs& n, const void* a, const void* b, bool* y, Run mode);
};

/// y[i] = condition[i] ? a[i] : b[i], of elements of `item` bytes; a scalar operand is one, too.
struct ChoiceKernel {
  const char* name;  // where_<bits>_<isa>
  Isa isa;
  int64_t item;
  void (*run)(int64_t n, const bool* condition, const void* a, const void* b, void* y, Run mode);
};

}  // namespace quern::kernels
