// The gradient of the weight of conv_depthwise.
//
//   cells are [range of rows of dy, over all images][panel of channels]
//     for each block of rows of an image in the range
//       copy the rows of x and dy, unless they are read where they lie
//       for each row of dy
//         products with the rows of x, in registers along the row, added to the cell's sums
//                                                                        depthwise_simd.h
//   dw = the sums of the ranges, merged in their order
#include <algorithm>

#include "quern/ops/kernels/blocking.h"
#include "quern/ops/kernels/conv/depthwise/depthwise.h"
#include "quern/tensor/per_thread.h"

namespace quern::kernels {
namespace {

template <class T>
class DepthwiseWgrad {
 public:
  DepthwiseWgrad(const DepthwisePlan& plan, const void* x, const void* dy, const ChannelMap& map,
                 void* dw)
      : p_(plan.problem),
        y_(plan.y),
        phase_(plan.y_phases[0]),
        spread_(plan.spread),
        group_(plan.group * plan.spread.in),
        kernel_(plan.kernel),
        index_(plan.index_of(map)),
        x_(x, p_.format, p_.n, p_.ic, p_.ih, p_.iw, p_.x_gap, map, &plan.kernel,
           index_ ? Spread{} : plan.spread),
        dy_(dy, p_.format, p_.n, p_.oc, p_.oh, p_.ow, p_.y_gap),
        dw_(static_cast<float*>(dw)),
        taps_(plan.taps),
        panels_(p_.oc, depthwise_panel(plan.taps * group_,
                                       x_.copied() || dy_.copied() ? kCopiedChannels<T> : p_.oc)),
        pitch_(round_up(panels_.widest(), kDepthwiseChannels)),
        row_(p_.kw * group_ * pitch_),
        tap_(spread_.in > 1 ? pitch_ : group_ * pitch_),
        channel_(spread_.in > 1 ? p_.kw * pitch_ : pitch_),
        parts_(std::clamp<int64_t>(
            ceil_div(wanted_cells(p_.n * p_.oc * p_.oh * p_.ow * taps_ * group_), panels_.count), 1,
            p_.n * p_.oh)),
        block_rows_(block_rows()),
        x_copies_(x_.scratch_items(source_rows(block_rows_), pitch_)),
        dy_copies_(dy_.scratch_items(block_rows_, pitch_)) {}

  void run() const {
    const int64_t items = taps_ * group_ * pitch_;  // of a cell
    const Workspace all(parts_ * panels_.count * items * static_cast<int64_t>(sizeof(float)));
    parallel_for(parts_ * panels_.count, [&](int64_t cell) {
      float* sums = all.as<float>() + cell * items;
      std::fill_n(sums, items, 0.0f);
      run_cell(piece(p_.n * p_.oh, parts_, cell / panels_.count), panels_[cell % panels_.count],
               sums);
    });
    parallel_pieces(panels_.count, parts_ * items, [&](int64_t panel) {
      const Extent channels = panels_[panel];
      float* sums = all.as<float>() + panel * items;
      for (int64_t part = 1; part < parts_; ++part)
        for (int64_t i = 0; i < items; ++i) sums[i] += sums[part * panels_.count * items + i];
      float* dw = dw_ + channels.begin * group_ * taps_;
      for (int64_t r = 0; r < p_.kh; ++r)
        for (int64_t i = 0; i < group_; ++i)
          copy_matrix(sizeof(float), sums + r * row_ + i * channel_, 1, tap_,
                      dw + i * taps_ + r * p_.kw, group_ * taps_, channels.size, p_.kw);
    });
  }

 private:
  /// Rows of x that so many of dy meet, at most.
  int64_t source_rows(int64_t rows) const {
    return std::min(p_.ih, (rows - 1) * p_.stride_h + (p_.kh - 1) * p_.dilation_h + 1);
  }
  /// As many rows of dy as keep what is copied in L2.
  int64_t block_rows() const {
    const auto bytes = [&](int64_t rows) {
      return (x_.scratch_items(source_rows(rows), pitch_) + dy_.scratch_items(rows, pitch_)) *
             static_cast<int64_t>(sizeof(T));
    };
    int64_t rows = 1;
    while (rows < p_.oh && bytes(rows + 1) <= cache::depthwise_block()) ++rows;
    return rows;
  }

  int64_t source_row(int64_t row, int64_t tap) const {
    return row * p_.stride_h + phase_.offset + tap * phase_.offset_step;
  }

  void run_cell(Extent rows, Extent channels, float* sums) const {
    for (int64_t at = rows.begin, end = rows.begin + rows.size; at < end;) {
      const int64_t image = at / p_.oh, row = at % p_.oh;
      const int64_t count = std::min({block_rows_, p_.oh - row, end - at});
      run_block(image, {row, count}, channels, sums);
      at += count;
    }
  }

  void run_block(int64_t image, Extent rows, Extent channels, float* sums) const {
    const int64_t first = std::clamp<int64_t>(source_row(rows.begin, 0), 0, p_.ih);
    const int64_t end =
        std::clamp(source_row(rows.begin + rows.size - 1, p_.kh - 1) + 1, first, p_.ih);
    const auto x =
        x_.view(image, {first, end - first}, index_ ? Extent{0, p_.ic} : channels, x_copies_.get());
    const auto dy = dy_.view(image, rows, channels, dy_copies_.get());
    const int64_t copies = index_ ? 1 : spread_.in;  // rows that a row of x has become
    for (int64_t i = rows.begin; i < rows.begin + rows.size; ++i) {
      const Axis::Range live = y_.live_taps(phase_, i);
      if (live.begin >= live.end) continue;
      const DepthwiseWindow window{.source = x.origin + source_row(i, live.begin) * x.row,
                                   .source_row = copies > 1 ? x.step : p_.dilation_h * x.row,
                                   .pixel = x.pixel,
                                   .width = p_.iw,
                                   .rows = (live.end - live.begin) * copies,
                                   .taps = p_.kw,
                                   .weight_row = copies > 1 ? channel_ : row_,
                                   .weight_tap = tap_,
                                   .outputs = p_.ow,
                                   .stride = p_.stride_w,
                                   .offset = -p_.pad_w,
                                   .offset_step = p_.dilation_w,
                                   .channels = padded_channels(channels.size),
                                   .group = group_ / spread_.in,
                                   .weight_channel = channel_,
                                   .index = index_ ? index_ + channels.begin : nullptr,
                                   .steps = spread_.in,
                                   .source_channels = p_.ic,
                                   .fresh = x_.streams_past(cache::l2()) ? p_.stride_h : 0,
                                   .to_next_row = p_.stride_h * x.row};
      each_dense<T>(window, [&](const DepthwiseWindow& part, int64_t output, int64_t apart) {
        kernel_.add_gradient(part, dy.origin + i * dy.row + output * dy.pixel, apart * dy.pixel,
                             sums + live.begin * row_);
      });
    }
  }

  const ConvProblem& p_;
  const Axis& y_;
  const Phase& phase_;
  const Spread spread_;
  const int64_t group_;  // channels of one
  const DepthwiseKernel& kernel_;
  const int32_t* const index_;  // of dy's channels (DepthwiseWindow), where the kernels spread x
  const DepthwiseSource<T> x_, dy_;
  float* const dw_;
  const int64_t taps_;
  const ChannelPanels panels_;
  const int64_t pitch_;  // of a pixel in scratch, of a tap's sums
  // Of sums: [row][tap][channel of the group][channel], or, spread, [row][step][tap][channel].
  const int64_t row_, tap_, channel_;
  const int64_t parts_;
  const int64_t block_rows_;
  const PerThread<T> x_copies_, dy_copies_;  // of a block
};

}  // namespace

void run_depthwise_wgrad(const DepthwisePlan& plan, const void* x, const void* dy, void* dw,
                         const ChannelMap& map) {
  if (plan.problem.dtype == DType::bf16) DepthwiseWgrad<bfloat16>(plan, x, dy, map, dw).run();
  else DepthwiseWgrad<float>(plan, x, dy, map, dw).run();
}

}  // namespace quern::kernels
