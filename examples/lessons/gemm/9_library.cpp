// Step 9: the library's own product, on the tile that it takes for this CPU.
#include "gemm.h"
#include "quern/ops/kernels/gemm/gemm.h"
#include "quern/ops/kernels/gemm/micro_kernel.h"

namespace quern::lessons {
namespace {

// [call]
template <class T>
void multiply(DType dtype, Size size, Matrix<const T> a, Matrix<const T> b, Matrix<float> c) {
  kernels::gemm(kernels::select_gemm_kernel(dtype), {.m = size.m,
                                                     .n = size.n,
                                                     .k = size.k,
                                                     .a = {a.data, a.stride, 1},
                                                     .b = {b.data, b.stride, 1},
                                                     .c = c.data,
                                                     .c_dtype = DType::f32,
                                                     .c_row_stride = c.stride,
                                                     .accumulate = true});
}
// [end]

}  // namespace

void library_f32(Size size, Matrix<const float> a, Matrix<const float> b, Matrix<float> c) {
  multiply(DType::f32, size, a, b, c);
}

void library_bf16(Size size, Matrix<const bfloat16> a, Matrix<const bfloat16> b, Matrix<float> c) {
  multiply(DType::bf16, size, a, b, c);
}

}  // namespace quern::lessons
