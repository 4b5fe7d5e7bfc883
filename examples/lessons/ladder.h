// The steps of the lessons. Each is a ConvKernel, too, by its name: QUERN_KERNEL=lesson_gemm_4
// resnet50 train ... trains with it.
#pragma once
#include <span>

#include "gemm/gemm.h"
#include "quern/ops/kernels/conv/conv_kernel.h"

namespace quern::lessons {

/// A product, and what it needs of the CPU; null: none of this dtype.
struct GemmLesson {
  const char *name, *title;
  Gemm<float>* f32 = nullptr;
  Isa f32_isa = Isa::portable;
  Gemm<bfloat16>* bf16 = nullptr;
  Isa bf16_isa = Isa::portable;
  bool threads = false;  ///< else it runs on one
};

inline constexpr GemmLesson kGemmLessons[] = {
    {.name = "lesson_gemm_0", .title = "three loops", .f32 = three_loops},
    {.name = "lesson_gemm_1", .title = "loop order", .f32 = loop_order},
    {.name = "lesson_gemm_2", .title = "cache blocks", .f32 = cache_blocks},
    {.name = "lesson_gemm_3", .title = "packing", .f32 = packing},
    {.name = "lesson_gemm_4",
     .title = "register tile",
     .f32 = register_tile,
     .f32_isa = kVectorIsa},
    {.name = "lesson_gemm_5", .title = "wide tile", .f32 = wide_tile, .f32_isa = kWideIsa},
    {.name = "lesson_gemm_6", .title = "bf16 pairs", .bf16 = pairs, .bf16_isa = kPairIsa},
    {.name = "lesson_gemm_7", .title = "AMX tiles", .bf16 = amx_tiles},
    {.name = "lesson_gemm_8",
     .title = "threads",
     .f32 = threads_f32,
     .f32_isa = kVectorIsa,
     .bf16 = threads_bf16,
     .bf16_isa = kPairIsa,
     .threads = true},
    {.name = "lesson_gemm_9",
     .title = "the library's",
     .f32 = library_f32,
     .bf16 = library_bf16,
     .threads = true},
};

/// Why this CPU does not multiply the dtype so; null if it does.
const char* why_not(const GemmLesson& lesson, DType dtype);

/// The steps as kernels of convolutions, in the same order.
std::span<const kernels::ConvKernel> lesson_kernels();

}  // namespace quern::lessons
