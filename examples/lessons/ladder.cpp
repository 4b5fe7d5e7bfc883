#include "ladder.h"

#include <array>
#include <utility>

#include "im2col.h"
#include "quern/ops/kernels/table.h"

namespace quern::lessons {

using namespace kernels;

const char* why_not(const GemmLesson& lesson, DType dtype) {
  const bool f32 = dtype == DType::f32, bf16 = dtype == DType::bf16;
  if (!(f32 && lesson.f32) && !(bf16 && lesson.bf16)) return "it multiplies another dtype";
  if (!isa_enabled(f32 ? lesson.f32_isa : lesson.bf16_isa))
    return "its instructions are missing, or above QUERN_MAX_CPU_ISA";
  return nullptr;
}

namespace {

/// The i-th step as a kernel of convolutions.
template <size_t i>
constexpr ConvKernel kernel_of{
    .name = kGemmLessons[i].name,
    .why_not = [](const ConvProblem& p, ConvPass, const GemmKernel&) -> const char* {
      if (p.x_gap != 0 || p.y_gap != 0) return "it takes no gaps between rows";
      return why_not(kGemmLessons[i], p.dtype);
    },
    .plan =
        [](const ConvChoice& choice) {
          return im2col_plan(choice, kGemmLessons[i].f32, kGemmLessons[i].bf16);
        },
    .on_micro_kernels = false};

template <size_t... i>
constexpr auto kernels_of(std::index_sequence<i...>) {
  return std::array{kernel_of<i>...};
}
constexpr auto kKernels = kernels_of(std::make_index_sequence<std::size(kGemmLessons)>());

[[maybe_unused]] const bool kAdded = [] {
  for (const ConvKernel& kernel : kKernels) add_kernel(kernel);
  return true;
}();

}  // namespace

std::span<const ConvKernel> lesson_kernels() { return kKernels; }

}  // namespace quern::lessons
