// The GEMM micro-kernels: the choice, and the packing of B that their contract asks for.
#pragma once
#include "quern/ops/kernels/gemm/gemm_kernel.h"
#include "quern/ops/kernels/table.h"

namespace quern::kernels {

/// For this dtype of A and B, and not known to be slow on this CPU.
const GemmKernel& select_gemm_kernel(DType a_and_b);

/// A cell's calls of a kernel. In between the kernel may rely on what it set in the thread, AMX's tile
/// configuration, since nobody else has a turn; before and after, nothing is assumed or left there.
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

/// k as the kernel takes it: rounded up to its k_multiple.
int64_t padded_k(const GemmKernel& kernel, int64_t k);
/// Elements of one packed panel, k×nr with k padded.
int64_t panel_elements(const GemmKernel& kernel, int64_t k);
/// Panels that n columns fill.
int64_t panel_count(const GemmKernel& kernel, int64_t n);

/// Packs columns 0..n-1 (n <= nr) of B[k×n], element (p, j) at p·row_stride + j·col_stride, into
/// one panel; rows k..padded_k-1 and columns n..nr-1 become zero.
void pack_b_panel(const GemmKernel& kernel, const void* b, int64_t row_stride, int64_t col_stride,
                  int64_t k, int64_t n, void* panel);
/// Packs all of B[k×n] into panel_count(n) panels, one after the other, in the calling thread.
void pack_b(const GemmKernel& kernel, const void* b, int64_t row_stride, int64_t col_stride,
            int64_t k, int64_t n, void* panels);

}  // namespace quern::kernels
