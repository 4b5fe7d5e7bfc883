#include "quern/ops/kernels/elementwise/elementwise_simd.h"
#include "quern/ops/kernels/simd/avx512.h"

namespace quern::kernels {

constinit const UnaryKernel unary_avx512[] = {
#define QUERN_UNARY_NUMBER(op) QUERN_UNARY_REAL(op)
#define QUERN_UNARY_REAL(op)                                    \
  {#op "_f32_avx512", Isa::avx512, Unary::op, DType::f32,       \
   unary<Avx512, float, Formula<Avx512>::op>},                  \
      {#op "_bf16_avx512", Isa::avx512, Unary::op, DType::bf16, \
       unary<Avx512, uint16_t, Formula<Avx512>::op>},
#define QUERN_BINARY_NUMBER(op)
#define QUERN_BINARY_REAL(op)
#include "quern/ops/kernels/elementwise/ops.inc"
};

constinit const BinaryKernel binary_avx512[] = {
#define QUERN_UNARY_NUMBER(op)
#define QUERN_UNARY_REAL(op)
#define QUERN_BINARY_NUMBER(op) QUERN_BINARY_REAL(op)
#define QUERN_BINARY_REAL(op)                                    \
  {#op "_f32_avx512", Isa::avx512, Binary::op, DType::f32,       \
   binary<Avx512, float, Formula<Avx512>::op>},                  \
      {#op "_bf16_avx512", Isa::avx512, Binary::op, DType::bf16, \
       binary<Avx512, uint16_t, Formula<Avx512>::op>},
#include "quern/ops/kernels/elementwise/ops.inc"
};

}  // namespace quern::kernels
