// Packing the weight for forward and dgrad.
#include <algorithm>
#include <vector>

#include "quern/ops/kernels/conv/taps/taps.h"
#include "quern/ops/kernels/gemm/micro_kernel.h"
#include "quern/ops/kernels/pack/matrix.h"
#include "quern/tensor/dtype.h"
#include "quern/tensor/parallel.h"

namespace quern::kernels {
namespace {

/// B of forward is [input channel][output channel], of dgrad its transpose.
struct WeightMatrix {
  int64_t k_stride, n_stride;  // between channels of the source, of the output
  int64_t group_stride;

  explicit WeightMatrix(const ConvPlan& plan)
      : k_stride(plan.problem.kh * plan.problem.kw),
        n_stride(plan.problem.ic / plan.problem.groups * k_stride),
        group_stride(plan.problem.oc / plan.problem.groups * n_stride) {
    if (plan.pass == ConvPass::dgrad) std::swap(k_stride, n_stride);
  }
};

template <class T>
constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(T));

/// The part of the weight that a panel holds: element (k, n, tap) is at
/// k·k_stride + n·n_stride + tap.
template <class T>
struct PanelSource {
  const T* at;
  int64_t k_stride, n_stride, n, taps;
};

template <class T>
void fetch(const T* rows, int64_t stride, int64_t count, int64_t items) {
  for (int64_t i = 0; i < count; ++i)
    for (int64_t j = 0; j < items; j += kLine<T>) __builtin_prefetch(rows + i * stride + j);
}

/// Where the taps of a panel go: so many of a row are one product. A copy a term.
struct PanelPlace {
  int64_t in_k;   // taps of a product
  int64_t items;  // of a panel
  int terms;
};

/// Some rows of B at a time, of all taps: rounded to terms if need be, transposed to [k][tap][n],
/// which makes whole vectors of what lies side by side in the weight, both in L1, then put where
/// each tap has its panel. What comes next is prefetched: it lies in too many pages for hardware
/// prefetchers to follow.
template <class S, class T>
void pack_panel(const GemmKernel& gemm, const TapConv& conv, const PanelSource<S>& source,
                const PanelPlace& place, T* panel) {
  const int64_t product = panel_elements(gemm, conv.k()), nr = gemm.nr, taps = source.taps;
  const int64_t channels = conv.source_channels;
  const int64_t at_once = round_up(ceil_div(8 * kLine<S>, taps), gemm.kr);
  const bool forward = source.k_stride == taps;  // k and taps are one index
  const int64_t items = at_once * taps * nr;
  std::vector<T> rows(static_cast<size_t>(items)),
      rounded(static_cast<size_t>(place.terms * items));

  // B[k...][tap][n] of `count` rows, from a source with these strides
  const auto put = [&](const T* from, int64_t k_stride, int64_t n_stride, int64_t k, int64_t count,
                       T* to) {
    if (taps == 1 && n_stride == 1)  // as pack_panel_rows wants it
      return pack_panel_rows(panel_format(gemm), from, k_stride, 1, count, source.n, k, to);
    if (forward) {
      copy_matrix(sizeof(T), from, 1, n_stride, rows.data(), nr, count * taps, source.n);
    } else {
      for (int64_t i = 0; i < count; ++i)
        copy_matrix(sizeof(T), from + i * k_stride, 1, n_stride, rows.data() + i * taps * nr, nr,
                    taps, source.n);
    }
    for (int64_t tap = 0; tap < taps; ++tap)
      pack_panel_rows(panel_format(gemm), rows.data() + tap * nr, taps * nr, 1, count, source.n,
                      tap % place.in_k * channels + k, to + tap / place.in_k * product);
  };
  for (int64_t k = 0; k < channels; k += at_once) {
    const int64_t count = std::min(at_once, channels - k);
    const int64_t ahead = std::min(at_once, channels - k - count);
    const S* from = source.at + k * source.k_stride;
    const S* next = from + count * source.k_stride;
    if (forward) fetch(next, source.n_stride, ahead > 0 ? source.n : 0, ahead * taps);
    else fetch(next, source.k_stride, ahead, source.n * taps);
    if constexpr (std::is_same_v<S, T>) {
      put(from, source.k_stride, source.n_stride, k, count, panel);
    } else {
      const int64_t length = (forward ? count : source.n) * taps;  // of what is dense in the source
      round_matrix(from, forward ? source.n_stride : source.k_stride, 1, rounded.data(), length,
                   forward ? source.n : count, length, place.terms, items);
      for (int term = 0; term < place.terms; ++term)
        put(rounded.data() + term * items, forward ? taps : length, forward ? length : taps, k,
            count, panel + term * place.items);
    }
  }
}

/// A tap after the other.
template <class T>
void pack_taps(const GemmKernel& gemm, const TapConv& conv, const PanelSource<T>& source,
               int64_t in_k, T* panel) {
  for (int64_t tap = 0; tap < source.taps; ++tap)
    pack_panel_rows(panel_format(gemm), source.at + tap, source.k_stride, source.n_stride,
                    conv.source_channels, source.n, tap % in_k * conv.source_channels,
                    panel + tap / in_k * panel_elements(gemm, conv.k()));
}

/// S: the weight's type, f32 if it becomes terms.
template <class S, class T>
void pack_weight(const TapPlan& plan, const S* weight, T* packed) {
  const GemmKernel& gemm = *plan.gemm;
  const TapConv& conv = plan.conv;
  const WeightMatrix matrix(plan);
  const int64_t panels = plan.panels;
  const PanelPlace place{.in_k = conv.kw_in_k ? plan.problem.kw : 1,
                         .items = conv.kernel_taps() * panel_elements(gemm, conv.k()),
                         .terms = static_cast<int>(plan.terms)};
  const int64_t items = plan.panel_items();
  // An item that is moved counts as 16 multiplications: memory bounds what moves it.
  parallel_pieces(conv.groups * panels, 16 * items, [&](int64_t cell) {
    const int64_t group = cell / panels, first = cell % panels * gemm.nr;
    const PanelSource<S> source{
        .at = weight + group * matrix.group_stride + first * matrix.n_stride,
        .k_stride = matrix.k_stride,
        .n_stride = matrix.n_stride,
        .n = std::min<int64_t>(gemm.nr, conv.output_channels - first),
        .taps = plan.problem.kh * plan.problem.kw};
    T* panel = packed + cell * items;
    if (source.n < gemm.nr || padded_k(gemm, conv.k()) != conv.k()) std::fill_n(panel, items, T{});
    if constexpr (std::is_same_v<S, T>) {
      // Single taps lie as pack_panel_rows wants them, but for the pairs of forward.
      const bool direct = source.taps == 1 && (gemm.kr == 1 || source.n_stride == 1);
      if (conv.kw_in_k || direct) return pack_taps(gemm, conv, source, place.in_k, panel);
    }
    pack_panel(gemm, conv, source, place, panel);
  });
}

}  // namespace

int64_t TapPlan::packed_bytes() const {
  return conv.groups * panels * panel_items() * itemsize(gemm->b);
}

void TapPlan::pack(const void* weight, DType of_weight, void* packed) const {
  if (of_weight == DType::f32 && gemm->b == DType::bf16)
    return pack_weight(*this, static_cast<const float*>(weight), static_cast<bfloat16*>(packed));
  visit_floating("conv2d", gemm->b, [&]<class T>(std::type_identity<T>) {
    pack_weight(*this, static_cast<const T*>(weight), static_cast<T*>(packed));
  });
}

}  // namespace quern::kernels
