// The weight of conv_winograd: filters to G·g·Gᵀ, in panels.
#include <algorithm>
#include <vector>

#include "quern/ops/kernels/conv/winograd/winograd.h"
#include "quern/ops/kernels/gemm/micro_kernel.h"
#include "quern/ops/kernels/pack/matrix.h"
#include "quern/ops/kernels/work.h"

namespace quern::kernels {

int64_t WinogradPlan::packed_bytes() const {
  return panels * conv.points() * panel_elements(*gemm, conv.source_channels) *
         static_cast<int64_t>(sizeof(float));
}

/// Some source channels at a time: their taps are transposed to [channel][tap][nr], in L1, and
/// transformed.
void WinogradPlan::pack(const void* weight, DType /*f32*/, void* packed) const {
  constexpr int64_t taps = 9, at_once = 8;  // 9 KiB of 32 columns, whole cache lines of the weight
  const bool forward = pass == ConvPass::forward;
  const int64_t nr = gemm->nr, matrix = panel_elements(*gemm, conv.source_channels);
  int64_t k_stride = taps, n_stride = problem.ic * taps;  // of the weight
  if (!forward) std::swap(k_stride, n_stride);
  parallel_pieces(panels, 2 * conv.points() * matrix, [&](int64_t p) {
    const int64_t n = std::min(nr, conv.output_channels - p * nr);
    const float* from = static_cast<const float*>(weight) + p * nr * n_stride;
    float* panel = static_cast<float*>(packed) + p * conv.points() * matrix;
    std::vector<float> rows(static_cast<size_t>(at_once * taps * nr));  // zero beyond n
    for (int64_t k = 0; k < conv.source_channels; k += at_once) {
      const int64_t count = std::min(at_once, conv.source_channels - k);
      if (forward) {
        copy_matrix(sizeof(float), from + k * taps, 1, n_stride, rows.data(), nr, count * taps, n);
      } else {
        for (int64_t i = 0; i < count; ++i)
          copy_matrix(sizeof(float), from + (k + i) * k_stride, 1, taps,
                      rows.data() + i * taps * nr, nr, taps, n);
      }
      transforms.weight({.from = forward ? rows.data() : rows.data() + (taps - 1) * nr,
                         .to = panel + k * nr,
                         .filter = taps * nr,
                         .tap = forward ? nr : -nr,
                         .point = matrix,
                         .row = nr,
                         .filters = count,
                         .columns = nr});
    }
    const int64_t end = conv.source_channels * nr;  // and zeros up to the tile's k_multiple
    for (int64_t point = 0; point < conv.points(); ++point)
      std::fill(panel + point * matrix + end, panel + (point + 1) * matrix, 0.0f);
  });
}

}  // namespace quern::kernels
