#include "quern/ops/kernels/reduce/row_simd.h"

namespace quern::kernels {

using Arch = xsimd::default_arch;

constinit const RowKernel rows_portable[] = {
#define QUERN_ROW(op)                                                           \
  {#op "_f32_portable", Isa::portable, RowOp::op, DType::f32, op<Arch, float>}, \
      {#op "_bf16_portable", Isa::portable, RowOp::op, DType::bf16, op<Arch, bfloat16>},
#include "quern/ops/kernels/reduce/ops.inc"
};

}  // namespace quern::kernels
