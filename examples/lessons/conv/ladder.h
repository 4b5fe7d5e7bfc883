// The steps of this lesson. Each is a ConvKernel by its name: QUERN_KERNEL=lesson_conv_4
// resnet50 train ... trains with it.
#pragma once
#include <iterator>
#include <span>

#include "conv.h"
#include "gemm/gemm.h"
#include "quern/ops/kernels/conv/conv.h"

namespace quern::lessons {

/// What a step does, and in which format; what it does not, the step before does.
struct ConvLesson {
  const char *name, *title;
  MemoryFormat format;
  Isa isa;              ///< that it needs
  ConvPass about;       ///< the pass that it makes faster
  Convolve* convolve;   ///< null: none
  PackedFloats* count;  ///< of its filters, and of phases
  PackFilters* pack;
  Convolve* phases;  ///< dx; null: by `convolve`, with zeros between the pixels of dy
  FilterGradient* gradient;
  bool (*takes)(const ConvProblem&, ConvPass);
};

namespace detail {
constexpr bool forward_alone(const ConvProblem&, ConvPass pass) { return pass != ConvPass::wgrad; }
constexpr bool all(const ConvProblem&, ConvPass) { return true; }
constexpr bool strided_dgrad(const ConvProblem& p, ConvPass pass) {
  return pass == ConvPass::dgrad && p.stride_h * p.stride_w > 1;
}
constexpr bool wgrad_alone(const ConvProblem&, ConvPass pass) { return pass == ConvPass::wgrad; }
/// 3×3 filters without a stride, where at least half of the tiles of 4×4 is outputs.
constexpr bool tiles_of_3x3(const ConvProblem& p, ConvPass pass) {
  const bool forward = pass == ConvPass::forward;
  const int64_t height = forward ? p.oh : p.ih, width = forward ? p.ow : p.iw;
  const int64_t tiled = (height + 3) / 4 * 4 * ((width + 3) / 4 * 4);
  return pass != ConvPass::wgrad && p.kh == 3 && p.kw == 3 && p.stride_h == 1 && p.stride_w == 1 &&
         p.dilation_h == 1 && p.dilation_w == 1 && 2 * height * width >= tiled;
}
}  // namespace detail

inline constexpr ConvLesson kConvLessons[] = {
    {"lesson_conv_0", "seven loops", MemoryFormat::contiguous, Isa::portable, ConvPass::forward,
     seven_loops, count_as_they_are, as_they_are, nullptr, gradient_by_loops, detail::all},
    {"lesson_conv_1", "im2col and GEMM", MemoryFormat::contiguous, kVectorIsa, ConvPass::forward,
     im2col_product, count_as_they_are, as_they_are, nullptr, gradient_by_product, detail::all},
    {"lesson_conv_2", "taps as offsets", MemoryFormat::contiguous, kVectorIsa, ConvPass::forward,
     taps, count_as_they_are, filters_by_tap, nullptr, nullptr, detail::forward_alone},
    {"lesson_conv_3", "channels last", MemoryFormat::channels_last, kVectorIsa, ConvPass::forward,
     channels_last, count_in_panels, filters_in_panels, nullptr, nullptr, detail::forward_alone},
    {"lesson_conv_4", "batch-reduce GEMM", MemoryFormat::channels_last, kVectorIsa,
     ConvPass::forward, batch_reduce, count_of_tiles, filters_of_tiles, nullptr, nullptr,
     detail::forward_alone},
    {"lesson_conv_5", "phases", MemoryFormat::channels_last, kVectorIsa, ConvPass::dgrad, nullptr,
     count_of_tiles, filters_of_tiles, input_gradient_by_phases, nullptr, detail::strided_dgrad},
    {"lesson_conv_6", "outer products", MemoryFormat::channels_last, kVectorIsa, ConvPass::wgrad,
     nullptr, nullptr, nullptr, nullptr, gradient_by_outer_products, detail::wgrad_alone},
    {"lesson_conv_7", "Winograd", MemoryFormat::channels_last, kVectorIsa, ConvPass::forward,
     winograd, count_of_points, filters_of_points, nullptr, nullptr, detail::tiles_of_3x3},
};
inline constexpr size_t kConvSteps = std::size(kConvLessons);

/// The step that does this pass when `step` is asked for: it or the nearest before it.
const ConvLesson& who_does(size_t step, const ConvProblem& problem, ConvPass pass);

/// The steps as kernels of convolutions, in the same order.
std::span<const kernels::ConvKernel> conv_lesson_kernels();

}  // namespace quern::lessons
