#include "quern/ops/kernels/elementwise/elementwise_simd.h"
#include "quern/ops/kernels/simd/avx2.h"

namespace quern::kernels {

constinit const UnaryKernel unary_avx2[] = {
#define QUERN_UNARY_NUMBER(op) QUERN_UNARY_REAL(op)
#define QUERN_UNARY_REAL(op)                                                                  \
  {#op "_f32_avx2", Isa::avx2, Unary::op, DType::f32, unary<Avx2, float, Formula<Avx2>::op>}, \
      {#op "_bf16_avx2", Isa::avx2, Unary::op, DType::bf16,                                   \
       unary<Avx2, uint16_t, Formula<Avx2>::op>},
#define QUERN_BINARY_NUMBER(op)
#define QUERN_BINARY_REAL(op)
#include "quern/ops/kernels/elementwise/ops.inc"
};

constinit const BinaryKernel binary_avx2[] = {
#define QUERN_UNARY_NUMBER(op)
#define QUERN_UNARY_REAL(op)
#define QUERN_BINARY_NUMBER(op) QUERN_BINARY_REAL(op)
#define QUERN_BINARY_REAL(op)                                                                   \
  {#op "_f32_avx2", Isa::avx2, Binary::op, DType::f32, binary<Avx2, float, Formula<Avx2>::op>}, \
      {#op "_bf16_avx2", Isa::avx2, Binary::op, DType::bf16,                                    \
       binary<Avx2, uint16_t, Formula<Avx2>::op>},
#include "quern/ops/kernels/elementwise/ops.inc"
};

}  // namespace quern::kernels
