#include "quern/ops/kernels/gemm/micro_kernel.h"

#include "quern/tensor/divide.h"
#include "quern/tensor/dtype.h"

namespace quern::kernels {
namespace {

/// Does vdpbf16ps beat widening bf16 to f32? It does more multiplications a cycle than vfmadd231ps
/// on AMD's cores, fewer on Intel's, which leave bf16 to AMX. A table, not a measurement: the
/// choice decides the bits of a result, so it must not vary from run to run.
bool has_fast_vdpbf16ps() {
#if defined(__x86_64__)
  static const bool amd = (__builtin_cpu_init(), __builtin_cpu_is("amd") != 0);
  return amd;
#else
  return false;
#endif
}

}  // namespace

const GemmKernel& select_gemm_kernel(DType a_and_b) {
  const GemmKernel* kernel = select<GemmKernel>(
      "gemm", [=](const GemmKernel& record) { return record.a == a_and_b; },
      [](const GemmKernel& record) {
        return record.isa == Isa::avx512_bf16 && !has_fast_vdpbf16ps()
                   ? "vdpbf16ps is slower than widening on this CPU"
                   : nullptr;
      });
  if (!kernel) refuse_dtype("gemm", a_and_b);
  return *kernel;
}

int64_t padded_k(const GemmKernel& kernel, int64_t k) { return round_up(k, kernel.k_multiple); }

int64_t panel_elements(const GemmKernel& kernel, int64_t k) {
  return padded_k(kernel, k) * kernel.nr;
}

int64_t panel_count(const GemmKernel& kernel, int64_t n) { return ceil_div(n, kernel.nr); }

}  // namespace quern::kernels
