// The GEMM micro-kernels as drivers use them: the choice, a cell's calls, the sizes of packed
// operands.
#pragma once
#include "quern/ops/kernels/gemm/gemm_kernel.h"
#include "quern/ops/kernels/pack/panels.h"
#include "quern/ops/kernels/table.h"

namespace quern::kernels {

/// For this dtype of A and B, and not known to be slow on this CPU.
const GemmKernel& select_gemm_kernel(DType a_and_b);

/// A cell's calls of a kernel. In between the kernel may rely on what it set in the thread, AMX's
/// tile configuration, since nobody else has a turn; before and after, nothing is assumed or left
/// there.
class KernelUse {
 public:
  explicit KernelUse(const GemmKernel& kernel) : leave_(kernel.leave) {
    if (kernel.enter != nullptr) kernel.enter();
  }
  ~KernelUse() {
    if (leave_ != nullptr) leave_();
  }
  KernelUse(const KernelUse&) = delete;
  KernelUse& operator=(const KernelUse&) = delete;

 private:
  void (*const leave_)();
};

/// How it reads B.
inline PanelFormat panel_format(const GemmKernel& kernel) {
  return {kernel.b, kernel.nr, kernel.kr};
}
/// k as the kernel takes it: rounded up to its k_multiple.
int64_t padded_k(const GemmKernel& kernel, int64_t k);
/// Elements of one packed panel, k×nr with k padded.
int64_t panel_elements(const GemmKernel& kernel, int64_t k);
/// Panels that n columns fill.
int64_t panel_count(const GemmKernel& kernel, int64_t n);

}  // namespace quern::kernels
