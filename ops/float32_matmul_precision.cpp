#include "quern/ops/float32_matmul_precision.h"

#include <array>
#include <atomic>
#include <cstdlib>

#include "quern/ops/detail/matrix.h"
#include "quern/ops/kernels/gemm/micro_kernel.h"
#include "quern/ops/kernels/pack/bf16_terms.h"
#include "quern/tensor/check.h"

namespace quern {
namespace {

constexpr std::string_view kOp = "float32_matmul_precision";
/// By bf16_terms.
constexpr std::array<std::string_view, 3> kNames = {"highest", "medium", "high"};
constexpr int kUnset = -1;
std::atomic<int> wanted_terms{kUnset};
std::atomic<int> assumed_speed{0};

int terms_from_environment() {
  const char* value = std::getenv("QUERN_DEFAULT_FPMATH_MODE");
  const std::string_view mode = value == nullptr ? "" : value;
  check(mode.empty() || mode == "STRICT" || mode == "BF16", kOp,
        "QUERN_DEFAULT_FPMATH_MODE: expected STRICT or BF16, got \"{}\"", mode);
  return mode == "BF16" ? 1 : 0;
}

int terms() {
  int now = wanted_terms.load(std::memory_order_relaxed);
  if (now == kUnset) {
    now = terms_from_environment();
    wanted_terms.store(now, std::memory_order_relaxed);
  }
  return now;
}

/// Multiplications of a bf16 tile to one of f32 on the CPU for which it was chosen.
int bf16_speed(const kernels::GemmKernel& kernel) {
  const int assumed = assumed_speed.load(std::memory_order_relaxed);
  if (assumed != 0) return assumed;
  switch (kernel.isa) {
    case Isa::amx: return 8;
    case Isa::neon_bf16:
    case Isa::sve_bf16: return 4;
    case Isa::avx512_bf16: return 2;
    default: return 1;
  }
}

}  // namespace

void set_float32_matmul_precision(std::string_view precision) {
  for (size_t i = 0; i < kNames.size(); ++i)
    if (kNames[i] == precision) return wanted_terms.store(static_cast<int>(i));
  fail(kOp, fmt::format("precision: expected highest, high or medium, got \"{}\"", precision));
}

std::string_view get_float32_matmul_precision() { return kNames[static_cast<size_t>(terms())]; }

detail::Multiplier detail::select_multiplier(DType dtype) {
  if (const int wanted = terms(); dtype == DType::f32 && wanted != 0) {
    const kernels::GemmKernel& bf16 = kernels::select_gemm_kernel(DType::bf16);
    const double speed = bf16_speed(bf16), products = kernels::term_products(wanted);
    if (speed > products) return {bf16, wanted, speed / products};
  }
  return {kernels::select_gemm_kernel(dtype), 0, 1};
}

void detail::assume_bf16_speed(int times) { assumed_speed.store(times); }

}  // namespace quern
