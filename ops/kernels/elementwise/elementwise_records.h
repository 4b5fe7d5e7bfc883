// The tables of records, one an instruction set, declared for the files that define them.
#pragma once
#include "quern/ops/kernels/elementwise/elementwise_kernel.h"

namespace quern::kernels {

struct OpCount {
  int numbers, reals;  // functions marked _NUMBER, _REAL in ops.inc
  constexpr int vector_records() const { return 2 * (numbers + reals); }       // f32, bf16
  constexpr int reference_records() const { return 6 * numbers + 3 * reals; }  // with f64, integers
};

inline constexpr OpCount kUnary = [] {
  OpCount count{};
#define QUERN_UNARY_NUMBER(op) ++count.numbers;
#define QUERN_UNARY_REAL(op) ++count.reals;
#define QUERN_BINARY_NUMBER(op)
#define QUERN_BINARY_REAL(op)
#include "quern/ops/kernels/elementwise/ops.inc"
  return count;
}();
inline constexpr OpCount kBinary = [] {
  OpCount count{};
#define QUERN_UNARY_NUMBER(op)
#define QUERN_UNARY_REAL(op)
#define QUERN_BINARY_NUMBER(op) ++count.numbers;
#define QUERN_BINARY_REAL(op) ++count.reals;
#include "quern/ops/kernels/elementwise/ops.inc"
  return count;
}();

extern const UnaryKernel unary_avx512[kUnary.vector_records()];
extern const UnaryKernel unary_avx2[kUnary.vector_records()];
extern const UnaryKernel unary_portable[kUnary.vector_records()];
extern const UnaryKernel unary_reference[kUnary.reference_records()];

extern const BinaryKernel binary_avx512[kBinary.vector_records()];
extern const BinaryKernel binary_avx2[kBinary.vector_records()];
extern const BinaryKernel binary_portable[kBinary.vector_records()];
extern const BinaryKernel binary_reference[kBinary.reference_records()];

}  // namespace quern::kernels
