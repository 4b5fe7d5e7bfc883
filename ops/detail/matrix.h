// What linear and matmul share, tensors as operands of the GEMM driver and its line of
// QUERN_VERBOSE; and, with conv2d too, the choice of the arithmetic.
#pragma once
#include <fmt/core.h>

#include <functional>

#include "quern/ops/kernels/gemm/direct.h"
#include "quern/ops/kernels/gemm/gemm.h"
#include "quern/tensor/tensor.h"
#include "quern/tensor/verbose.h"

namespace quern::detail {

/// What multiplies tensors of a dtype under the precision asked for (float32_matmul_precision.h):
/// f32 by a kernel of its own, or of bf16 with bf16_terms as in GemmProblem, then so many times as
/// fast.
struct Multiplier {
  const kernels::GemmKernel& kernel;
  int bf16_terms;
  double speed;
};
Multiplier select_multiplier(DType dtype);

/// For tests: takes bf16 to be so many times as fast as f32; 0: what it is on this CPU.
void assume_bf16_speed(int times);

/// The last two dimensions of `t`, whatever its strides.
inline kernels::GemmOperand operand(const Tensor& t) {
  return {t.data_ptr(), t.stride(-2), t.stride(-1)};
}
inline kernels::GemmOperand transposed(kernels::GemmOperand o) {
  std::swap(o.row_stride, o.col_stride);
  return o;
}

inline void report(VerboseOp& line, const char* kernel, DType a_and_b,
                   const kernels::GemmProblem& p) {
  if (!line) return;
  const std::string batch = p.batch == 1 ? "" : fmt::format("b{}", p.batch);
  line.set(kernel, fmt::format("{}m{}n{}k{}", batch, p.m, p.n, p.k),
           fmt::format("{}:{}:{}", a_and_b, a_and_b, p.c_dtype));
  const int64_t operands = (p.m * p.k + p.k * p.n) * itemsize(a_and_b);
  line.set_work(2 * p.batch * p.m * p.n * p.k,
                p.batch * (operands + p.m * p.n * itemsize(p.c_dtype)));
}
inline void report(VerboseOp& line, const kernels::GemmKernel& kernel,
                   const kernels::GemmProblem& p) {
  report(line, kernel.name, kernel.a, p);
}

/// What computes `p`, of operands of a dtype, and products like it on other memory: without packing
/// where that is faster, or by `kernel`. The line tells which.
inline std::function<void(const kernels::GemmProblem&)> select_product(
    VerboseOp& line, const kernels::GemmKernel& kernel, DType a_and_b,
    const kernels::GemmProblem& p) {
  if (const auto* direct = kernels::select_direct_kernel(p, a_and_b)) {
    report(line, direct->name, direct->dtype, p);
    return [direct](const kernels::GemmProblem& q) { kernels::direct_product(*direct, q); };
  }
  report(line, kernel, p);
  return [&kernel](const kernels::GemmProblem& q) { kernels::gemm(kernel, q); };
}

}  // namespace quern::detail
