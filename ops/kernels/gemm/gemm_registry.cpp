#include "quern/ops/kernels/gemm/gemm_registry.h"

#include <algorithm>

#include "quern/tensor/divide.h"
#include "quern/tensor/dtype.h"

namespace quern::kernels {
namespace {

/// Does vdpbf16ps beat widening bf16 to f32? Throughput against vfmadd231ps of the same width:
/// twice the multiplications on AMD (Zen 4, Zen 5), half of them on Intel's cores, which leave bf16
/// to AMX. A table, not a measurement: the choice decides the bits of a result, so it must not vary
/// from run to run.
bool has_fast_vdpbf16ps() {
#if defined(__x86_64__)
  static const bool amd = (__builtin_cpu_init(), __builtin_cpu_is("amd") != 0);
  return amd;
#else
  return false;
#endif
}

/// Packs one panel of a kernel whose kr is kKr.
template <int kKr, class T>
void pack_panel(const GemmKernel& kernel, const T* b, int64_t row_stride, int64_t col_stride,
                int64_t k, int64_t n, T* panel) {
  if (n < kernel.nr || k % kernel.k_multiple != 0)
    std::fill_n(panel, panel_elements(kernel, k), T{});
  const int64_t nr = kernel.nr, whole = k / kKr * kKr;
  // The strides of the two usual layouts are passed as constants.
  const auto group = [=](int64_t p, int64_t j, int64_t row_stride, int64_t col_stride) {
    for (int q = 0; q < kKr; ++q)
      panel[p * nr + j * kKr + q] = b[(p + q) * row_stride + j * col_stride];
  };
  const auto by_columns = [=](int64_t row_stride) {
    constexpr int64_t kBlock = 16;  // of rows: whole cache lines of b, few of the panel
    for (int64_t first = 0; first < whole; first += kBlock)
      for (int64_t j = 0; j < n; ++j)
        for (int64_t p = first; p < std::min(whole, first + kBlock); p += kKr)
          group(p, j, row_stride, col_stride);
  };
  if (col_stride == 1) {
    for (int64_t p = 0; p < whole; p += kKr)
      for (int64_t j = 0; j < n; ++j) group(p, j, row_stride, 1);
  } else if (row_stride == 1) {
    by_columns(1);
  } else {
    by_columns(row_stride);
  }
  for (int64_t p = whole; p < k; ++p)
    for (int64_t j = 0; j < n; ++j)
      panel[whole * nr + j * kKr + p - whole] = b[p * row_stride + j * col_stride];
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
  check(kernel, "gemm", "dtype: expected bf16, f32 or f64, got {}", a_and_b);
  return *kernel;
}

int64_t padded_k(const GemmKernel& kernel, int64_t k) { return round_up(k, kernel.k_multiple); }

int64_t panel_elements(const GemmKernel& kernel, int64_t k) {
  return padded_k(kernel, k) * kernel.nr;
}

int64_t panel_count(const GemmKernel& kernel, int64_t n) { return (n + kernel.nr - 1) / kernel.nr; }

void pack_b_panel(const GemmKernel& kernel, const void* b, int64_t row_stride, int64_t col_stride,
                  int64_t k, int64_t n, void* panel) {
  visit_floating("gemm", kernel.b, [&]<class T>(std::type_identity<T>) {
    const auto pack = kernel.kr == 1   ? pack_panel<1, T>
                      : kernel.kr == 2 ? pack_panel<2, T>
                                       : pack_panel<4, T>;
    pack(kernel, static_cast<const T*>(b), row_stride, col_stride, k, n, static_cast<T*>(panel));
  });
}

void pack_b(const GemmKernel& kernel, const void* b, int64_t row_stride, int64_t col_stride,
            int64_t k, int64_t n, void* panels) {
  const int64_t item = itemsize(kernel.b);
  for (int64_t j = 0; j < n; j += kernel.nr) {
    const auto* from = static_cast<const std::byte*>(b) + j * col_stride * item;
    auto* to = static_cast<std::byte*>(panels) + j / kernel.nr * panel_elements(kernel, k) * item;
    pack_b_panel(kernel, from, row_stride, col_stride, k, std::min<int64_t>(n - j, kernel.nr), to);
  }
}

}  // namespace quern::kernels
