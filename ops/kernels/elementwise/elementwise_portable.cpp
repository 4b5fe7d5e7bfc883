#include "quern/ops/kernels/elementwise/elementwise_simd.h"
#include "quern/ops/kernels/simd/portable.h"

namespace quern::kernels {

constinit const UnaryKernel unary_portable[] = {
#define QUERN_UNARY_NUMBER(op) QUERN_UNARY_REAL(op)
#define QUERN_UNARY_REAL(op)                                        \
  {#op "_f32_portable", Isa::portable, Unary::op, DType::f32,       \
   unary<Portable, float, Formula<Portable>::op>},                  \
      {#op "_bf16_portable", Isa::portable, Unary::op, DType::bf16, \
       unary<Portable, uint16_t, Formula<Portable>::op>},
#define QUERN_BINARY_NUMBER(op)
#define QUERN_BINARY_REAL(op)
#include "quern/ops/kernels/elementwise/ops.inc"
};

constinit const BinaryKernel binary_portable[] = {
#define QUERN_UNARY_NUMBER(op)
#define QUERN_UNARY_REAL(op)
#define QUERN_BINARY_NUMBER(op) QUERN_BINARY_REAL(op)
#define QUERN_BINARY_REAL(op)                                        \
  {#op "_f32_portable", Isa::portable, Binary::op, DType::f32,       \
   binary<Portable, float, Formula<Portable>::op>},                  \
      {#op "_bf16_portable", Isa::portable, Binary::op, DType::bf16, \
       binary<Portable, uint16_t, Formula<Portable>::op>},
#include "quern/ops/kernels/elementwise/ops.inc"
};

}  // namespace quern::kernels
