// What the passes of conv_depthwise share: where they read, and the cut into panels of channels.
#pragma once
#include <cstddef>
#include <cstring>
#include <vector>

#include "quern/ops/kernels/blocking.h"
#include "quern/ops/kernels/conv/axis.h"
#include "quern/ops/kernels/conv/blocks.h"
#include "quern/ops/kernels/conv/conv.h"
#include "quern/ops/kernels/conv/depthwise/depthwise_kernel.h"
#include "quern/ops/kernels/pack/matrix.h"
#include "quern/ops/kernels/table.h"
#include "quern/ops/kernels/work.h"
#include "quern/tensor/dtype.h"
#include "quern/tensor/storage.h"

namespace quern::kernels {

/// For bf16 or f32.
inline const DepthwiseKernel& select_depthwise_kernel(DType dtype) {
  return *select<DepthwiseKernel>(
      "depthwise", [=](const DepthwiseKernel& kernel) { return kernel.dtype == dtype; });
}

/// Channels as the kernels have them: as many as they take at least.
inline int64_t padded_channels(int64_t channels) { return std::max(channels, kDepthwiseChannels); }

/// Panels of about `width` channels, no smaller than kDepthwiseChannels but where all are fewer.
struct ChannelPanels {
  int64_t channels, count;

  ChannelPanels(int64_t channels, int64_t width)
      : channels(channels),
        count(std::max<int64_t>(1, ceil_div(units(channels), std::max<int64_t>(1, units(width))))) {
  }
  Extent operator[](int64_t i) const {
    const Extent e = piece(units(channels), count, i);
    const int64_t begin = e.begin * kDepthwiseChannels;
    return {begin, i + 1 == count ? channels - begin : e.size * kDepthwiseChannels};
  }
  int64_t widest() const {
    int64_t most = 0;
    for (int64_t i = 0; i < count; ++i) most = std::max(most, (*this)[i].size);
    return most;
  }

 private:
  static int64_t units(int64_t n) { return n / kDepthwiseChannels; }
};

/// Channels of a panel that is copied on the way in or out, other than whole pixels of forward, and
/// the fewest that windows slide over: two cache lines, which come together.
template <class T>
inline constexpr int64_t kCopiedChannels = 128 / sizeof(T);
/// Channels of a panel whose weights, so many of each, take so many bytes, at most `most` if that
/// is not less than the kernels take.
inline int64_t depthwise_panel(int64_t weights_of_one, int64_t most,
                               int64_t weights = cache::kDepthwiseWeights) {
  const int64_t in_cache = weights / static_cast<int64_t>(sizeof(float));
  return std::clamp(in_cache / weights_of_one, kDepthwiseChannels, padded_channels(most));
}

/// How groups become channels that meet one channel each, a step: output o meets, at step i < in,
/// channel o / out · in + i of the source.
struct Spread {
  int64_t in = 1, out = 1;  // channels of a group
};

/// An image tensor whose rows the kernels read: where it lies, or copied with channels innermost,
/// mapped, a block of rows and a panel of channels at a time. If it is spread, channels are the
/// outputs', and a row becomes one for each step, so that steps are like rows of taps to the
/// kernels.
///
///     pixel  a b | c d    in 2, out 3      row of step 0   a a a c c c
///                                          row of step 1   b b b d d d
template <class T>
class DepthwiseSource {
 public:
  DepthwiseSource(const void* data, MemoryFormat format, int64_t images, int64_t channels,
                  int64_t height, int64_t width, int64_t gap, const ChannelMap& map = {},
                  const DepthwiseKernel* kernel = nullptr, Spread spread = {})
      : data_(static_cast<const T*>(data)),
        strides_(format, channels, height, width, gap),
        width_(width),
        map_(map),
        kernel_(kernel),
        spread_(spread),
        bytes_(images * strides_.n * static_cast<int64_t>(sizeof(T))),
        copied_(strides_.c != 1 || map.scale || channels < kDepthwiseChannels || is_spread()) {}

  bool copied() const { return copied_; }
  bool is_spread() const { return spread_.in > 1 || spread_.out > 1; }
  /// Does it come, row by row, from beyond a cache of so many bytes?
  bool streams_past(int64_t cache) const { return !copied_ && bytes_ > cache; }
  /// Elements of scratch that so many rows take.
  int64_t scratch_items(int64_t rows, int64_t panel) const {
    return copied_ ? rows * spread_.in * width_ * pitch(panel) : 0;
  }
  /// Is each pixel mapped where it lies, its channels together?
  bool maps_pixels() const { return copied_ && strides_.c == 1; }
  /// Pixel 0 of row 0, had the view all rows; distances of rows, steps and pixels.
  struct View {
    const T* origin;
    int64_t row, step, pixel;
  };
  /// Rows [rows.begin, ...) of an image, in `channels`; scratch is filled where they are copied.
  View view(int64_t image, Extent rows, Extent channels, T* scratch) const {
    const T* from = data_ + image * strides_.n;
    if (!copied_) return {from + channels.begin, strides_.y, 0, strides_.x};
    const int64_t pixel = pitch(channels.size), step = width_ * pixel, row = spread_.in * step;
    from += rows.begin * strides_.y;
    if (channels.size < kDepthwiseChannels) std::fill_n(scratch, rows.size * row, T{});
    if (is_spread()) copy_spread(from, rows.size, channels, scratch, pixel);
    else copy(from, rows.size, channels, scratch, pixel);
    return {scratch - rows.begin * row, row, step, pixel};
  }
  /// The same, where scratch holds the rows `held` from an earlier view of the image: those that
  /// are wanted again are moved, not made again.
  View view(int64_t image, Extent rows, Extent channels, T* scratch, Extent& held) const {
    const int64_t row = scratch_items(1, channels.size), held_end = held.begin + held.size;
    int64_t kept = 0;
    if (copied_ && held.begin <= rows.begin && rows.begin < held_end) {
      kept = std::min(held_end - rows.begin, rows.size);
      std::memmove(scratch, scratch + (rows.begin - held.begin) * row,
                   static_cast<size_t>(kept * row) * sizeof(T));
    }
    held = rows;
    return view(image, {rows.begin + kept, rows.size - kept}, channels, scratch + kept * row);
  }

 private:
  static int64_t pitch(int64_t panel) { return round_up(panel, kDepthwiseChannels); }

  void copy_spread(const T* from, int64_t rows, Extent channels, T* to, int64_t pixel) const {
    const auto [in, out] = spread_;
    const int64_t first = channels.begin / out, pixels = rows * width_;
    const int64_t count = (ceil_div(channels.begin + channels.size, out) - first) * in;
    const Workspace singles((pixels * count + kSpreadReach) * static_cast<int64_t>(sizeof(T)));
    copy(from, rows, {first * in, count}, singles.as<T>(), count);
    CachedVector<int32_t> index(static_cast<size_t>(channels.size));
    for (int64_t c = 0; c < channels.size; ++c)
      index[static_cast<size_t>(c)] =
          static_cast<int32_t>(((channels.begin + c) / out - first) * in);
    const int64_t step = width_ * pixel;
    for (int64_t row = 0; row < rows; ++row)
      kernel_->spread({.from = singles.as<T>() + row * width_ * count,
                       .from_pixel = count,
                       .index = index.data(),
                       .channels = channels.size,
                       .steps = in,
                       .pixels = width_,
                       .to = to + row * in * step,
                       .to_step = step,
                       .to_pixel = pixel});
  }

  void copy(const T* from, int64_t rows, Extent channels, T* to, int64_t pixel) const {
    from += channels.begin * strides_.c;
    // Rows follow each other, but for those with gaps.
    const bool follow = strides_.c != 1 || strides_.y == width_ * strides_.x;
    const int64_t pieces = follow ? 1 : rows, pixels = rows * width_ / std::max<int64_t>(1, pieces);
    for (int64_t i = 0; i < pieces; ++i, from += strides_.y, to += pixels * pixel) {
      MapCopy matrix{.src = from,
                     .src_stride = strides_.x,
                     .dst = to,
                     .dst_stride = pixel,
                     .rows = pixels,
                     .cols = channels.size,
                     .map = from_channel<float>(map_, channels.begin)};
      if (!map_.scale || strides_.c != 1) {  // mapped where it lies then
        copy_matrix(sizeof(T), from, strides_.x, strides_.c, to, pixel, pixels, channels.size);
        matrix.src = to, matrix.src_stride = pixel;
      }
      if (map_.scale) map_matrix<T>(matrix);
    }
  }

  const T* data_;
  ImageStrides strides_;
  int64_t width_;
  ChannelMap map_;
  const DepthwiseKernel* kernel_;  // of what is spread
  Spread spread_;
  int64_t bytes_;
  bool copied_;
};

/// What a pass decides before it sees its operands. Panels and blocks are left: they follow from
/// the epilogue, too.
class DepthwisePlan final : public ConvPlan {
 public:
  explicit DepthwisePlan(const ConvChoice& choice);
  /// [tap][step][channel], floats or pairs of bf16 (depthwise_kernel.h); of a source that is spread
  /// [row of taps][step][tap][channel], rows in the order of the phases that they are of.
  int64_t packed_bytes() const override;
  void pack(const void* weight, DType of_weight, void* packed) const override;

  const DepthwiseKernel& kernel;
  const int64_t channels;  // of the output; wgrad: of dy
  const int64_t group;     // its channels, where the kernels take groups; else 1
  const Spread spread;     // of the source, or of x, where they do not
  const int64_t taps;      // of all rows
  const Axis y, x;         // of wgrad: those of forward
  const std::vector<Phase> y_phases, x_phases;
  /// Of each output's channel (DepthwiseWindow), where the kernels spread groups, for each tap that
  /// meets a pixel: of few taps, that takes less time than a copy. Else empty.
  const CachedVector<int32_t> index;
  const bool slides;  // down the rows (DepthwiseKernel::store_rows)
  const bool planes;  // are such that they can be convolved where they lie (planes.cpp)

  /// The rows of the source that one of the output reads: of `phase`, under its live taps.
  struct Rows {
    const Phase& phase;
    int64_t index;  // of the output in it
    Axis::Range taps;
    int64_t first(const Axis& y) const {
      return index * y.stride() + phase.offset + taps.begin * phase.offset_step;
    }
    int64_t last(const Axis& y) const {
      return index * y.stride() + phase.offset + (taps.end - 1) * phase.offset_step;
    }
  };
  Rows rows_read(int64_t row) const {
    const Phase& phase = y_phases[static_cast<size_t>(row % y.output_step)];
    const int64_t index = row / y.output_step;
    return {phase, index, y.live_taps(phase, index)};
  }
  /// The window of the row's outputs of a phase along x, and where its weight is from the first on.
  struct Placed {
    DepthwiseWindow window;
    int64_t weight;
  };
  /// `index`: of these channels, where the kernels spread groups.
  template <class View>
  Placed window(const Rows& read, const Phase& along_x, const View& source, Extent channels,
                bool prefetch, const int32_t* index = nullptr) const {
    const int64_t pitch = padded_channels(this->channels);
    const int64_t taps_apart = kernel.steps(group) * pitch;
    Placed placed{{.source = source.origin,
                   .source_row = read.phase.offset_step * source.row,
                   .pixel = source.pixel,
                   .width = x.source,
                   .rows = read.taps.end - read.taps.begin,
                   .taps = along_x.taps,
                   .weight_row = read.phase.kernel_step * problem.kw * taps_apart,
                   .weight_tap = along_x.kernel_step * taps_apart,
                   .outputs = along_x.count,
                   .stride = x.stride(),
                   .offset = along_x.offset,
                   .offset_step = along_x.offset_step,
                   .channels = padded_channels(channels.size),
                   .group = group,
                   .weight_channel = pitch,
                   .fresh = prefetch ? y.stride() : 0,
                   .to_next_row = y.stride() * source.row},
                  channels.begin};
    if (placed.window.rows > 0 && placed.window.taps > 0) {
      placed.window.source = source.origin + read.first(y) * source.row;
      int64_t first = read.phase.kernel + read.taps.begin * read.phase.kernel_step;
      if (spread.in > 1) {
        first = (rows_before(read.phase) + read.taps.begin) * spread.in;
        const int64_t step = problem.kw * pitch;  // in the weight
        placed.window.index = index;
        placed.window.steps = spread.in, placed.window.weight_channel = step;
        placed.window.source_channels = source.pixel;
        placed.window.weight_row = index ? spread.in * step : step;
        if (!index) placed.window.rows *= spread.in, placed.window.source_row = source.step;
      }
      placed.weight += (first * problem.kw + along_x.kernel) * taps_apart;
    }
    return placed;
  }

  /// `index`, or null, where a copy spreads the source: one that maps it does that, too.
  const int32_t* index_of(const ChannelMap& map) const {
    return index.empty() || map.scale ? nullptr : index.data();
  }

  bool differentiates_at_once() const override;

 private:
  int64_t steps() const { return spread.in > 1 ? spread.in : kernel.steps(group); }
  /// Rows of taps of the phases before this one.
  int64_t rows_before(const Phase& phase) const {
    int64_t rows = 0;
    for (const Phase* p = y_phases.data(); p != &phase; ++p) rows += p->taps;
    return rows;
  }
  CachedVector<int32_t> index_of_channels() const;
  void widen(const void* weight, DType of_weight, float* to) const;
  void pair(uint32_t* weight) const;
  void compute(const void* from, const void* with, void* to, const Epilogue& epilogue,
               const ChannelMap& prologue) const override;
  void compute_both(const void* dy, const void* packed, void* dx, void* dw,
                    const Epilogue& epilogue) const override;
};

/// A row with dilated taps as several whose taps are neighbours: outputs that are offset_step apart
/// read pixels so far apart. f(window, its first output, the distance of its outputs).
template <class T, class F>
void each_dense(const DepthwiseWindow& w, F f) {
  const int64_t apart = w.offset_step;
  if (w.stride != 1 || apart == 1 || w.taps <= 1) return f(w, 0, 1);
  for (int64_t i = 0; i < std::min(apart, w.outputs); ++i) {
    const int64_t first = i + w.offset, column = (first % apart + apart) % apart;
    DepthwiseWindow part = w;
    part.source = static_cast<const T*>(w.source) + column * w.pixel;
    part.pixel = apart * w.pixel;
    part.width = column < w.width ? ceil_div(w.width - column, apart) : 0;
    part.outputs = ceil_div(w.outputs - i, apart);
    part.offset = (first - column) / apart;
    part.offset_step = 1;
    f(part, i, apart);
  }
}

/// Do the kernels do all of it: a shift and an activation at most?
inline bool is_plain(const Epilogue& epilogue) {
  using Kind = Epilogue::Kind;
  return epilogue.kind == Kind::store ||
         (epilogue.kind == Kind::activate && epilogue.residual == nullptr);
}
/// What of it they do, from a channel on.
inline DepthwiseStore activation(const Epilogue& epilogue, int64_t channel) {
  if (epilogue.kind != Epilogue::Kind::activate) return {};
  const auto* shift = static_cast<const float*>(epilogue.map.shift);
  return {shift ? shift + channel : nullptr, epilogue.activation};
}

// The engines.

/// Channels innermost, or made so.
void run_depthwise(const DepthwisePlan& plan, const void* source, const void* packed,
                   const ChannelMap& map, const Epilogue& epilogue, void* output);
/// Planes where they lie: of a plan that has them, if the epilogue is plain.
void run_depthwise_planes(const DepthwisePlan& plan, const void* source, const void* packed,
                          const ChannelMap& map, const Epilogue& epilogue, void* output);
bool suits_depthwise_planes(const ConvProblem& problem);
void run_depthwise_wgrad(const DepthwisePlan& plan, const void* x, const void* dy, void* dw,
                         const ChannelMap& map);
/// dgrad and wgrad, of channels with a filter each and innermost.
void run_depthwise_backward(const DepthwisePlan& plan, const void* dy, const void* packed, void* dx,
                            float* dw, const Epilogue& epilogue);

}  // namespace quern::kernels
