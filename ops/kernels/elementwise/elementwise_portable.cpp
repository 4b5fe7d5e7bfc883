#include "quern/ops/kernels/elementwise/elementwise_simd.h"

namespace quern::kernels {

using Arch = xsimd::default_arch;
#define QUERN_RECORD(kind, Kind, op, dtype, T)                        \
  {#op "_" #dtype "_portable", Isa::portable, Kind::op, DType::dtype, \
   kind<Arch, T, Formula<Arch>::op>},
#define QUERN_RECORDS(kind, Kind, op)      \
  QUERN_RECORD(kind, Kind, op, f32, float) \
  QUERN_RECORD(kind, Kind, op, bf16, bfloat16)

constinit const UnaryKernel unary_portable[] = {
#define QUERN_UNARY_NUMBER(op) QUERN_RECORDS(unary, Unary, op)
#define QUERN_UNARY_REAL(op) QUERN_RECORDS(unary, Unary, op)
#define QUERN_BINARY_NUMBER(op)
#define QUERN_BINARY_REAL(op)
#include "quern/ops/kernels/elementwise/ops.inc"
};

constinit const BinaryKernel binary_portable[] = {
#define QUERN_UNARY_NUMBER(op)
#define QUERN_UNARY_REAL(op)
#define QUERN_BINARY_NUMBER(op) QUERN_RECORDS(binary, Binary, op)
#define QUERN_BINARY_REAL(op) QUERN_RECORDS(binary, Binary, op)
#include "quern/ops/kernels/elementwise/ops.inc"
};

}  // namespace quern::kernels
