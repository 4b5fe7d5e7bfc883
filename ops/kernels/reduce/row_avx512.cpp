#include "quern/ops/kernels/reduce/row_simd.h"

namespace quern::kernels {

using Arch = xsimd::avx512bw;

constinit const RowKernel rows_avx512[] = {
#define QUERN_ROW(op)                                                       \
  {#op "_f32_avx512", Isa::avx512, RowOp::op, DType::f32, op<Arch, float>}, \
      {#op "_bf16_avx512", Isa::avx512, RowOp::op, DType::bf16, op<Arch, bfloat16>},
#include "quern/ops/kernels/reduce/ops.inc"
};

}  // namespace quern::kernels
