#include "quern/ops/kernels/reduce/row_simd.h"

namespace quern::kernels {

using Arch = xsimd::fma3<xsimd::avx2>;

constinit const RowKernel rows_avx2[] = {
#define QUERN_ROW(op)                                                   \
  {#op "_f32_avx2", Isa::avx2, RowOp::op, DType::f32, op<Arch, float>}, \
      {#op "_bf16_avx2", Isa::avx2, RowOp::op, DType::bf16, op<Arch, bfloat16>},
#include "quern/ops/kernels/reduce/ops.inc"
};

}  // namespace quern::kernels
