// Forward and dgrad of conv_depthwise where pixels are innermost and strides are 1: a plane after
// the other, without the transposes that channels would take on their way in and out. Images of
// less channels than a vector has lanes are planes, too, whose rows have the channels of a pixel
// side by side.
#include <algorithm>

#include "quern/ops/kernels/conv/depthwise/depthwise.h"
#include "quern/tensor/per_thread.h"

namespace quern::kernels {
namespace {

/// Of shorter rows too many lanes would be none of their pixels.
constexpr int64_t kLeastWidth = 12;
/// Elements of a larger plane are too many to be copied as a whole.
constexpr int64_t kMostItems = 1 << 24;

template <class T>
class DepthwisePlanes {
  static constexpr int64_t kVector = kDepthwiseChannels;

 public:
  DepthwisePlanes(const DepthwisePlan& plan, const void* source, const void* packed,
                  const ChannelMap& map, const Epilogue& epilogue, void* output)
      : p_(plan.problem),
        y_(plan.y),
        x_(plan.x),
        rows_(plan.y_phases[0]),
        columns_(plan.x_phases[0]),
        kernel_(plan.kernel),
        source_(static_cast<const T*>(source)),
        out_(static_cast<T*>(output)),
        map_(map),
        inside_(p_.format == MemoryFormat::channels_last ? p_.ic : 1),
        channels_(plan.channels),
        group_(plan.spread),
        planes_(p_.n * channels_ / inside_),
        items_(y_.source * x_.source * inside_),
        out_items_(y_.output * x_.output * inside_),
        before_(inside_ * std::max<int64_t>(0, -columns_.offset)),
        behind_(std::max<int64_t>(
            0, inside_ * (x_.output + columns_.last_offset() - x_.source) + kVector)),
        pitch_(inside_ == 1 ? padded_channels(channels_) : 2 * kVector),
        copies_(before_ + group_.in * items_ + behind_),
        outs_(out_items_ + kVector),
        repeated_((p_.kh * p_.kw + 1) * pitch_ * static_cast<int64_t>(sizeof(float))),
        weight_(static_cast<const float*>(packed)),
        after_(activation(epilogue, 0)) {
    if (inside_ == 1) return;
    const int64_t taps = p_.kh * p_.kw;
    const auto repeat = [&](const float* from, float* to) {
      for (int64_t i = 0; i < pitch_; ++i) to[i] = from[i % inside_];
      return to;
    };
    for (int64_t t = 0; t < taps; ++t)
      repeat(weight_ + t * padded_channels(channels_), repeated_.as<float>() + t * pitch_);
    weight_ = repeated_.as<float>();
    if (after_.shift) after_.shift = repeat(after_.shift, repeated_.as<float>() + taps * pitch_);
  }

  void run() const {
    const int64_t work = out_items_ * p_.kh * p_.kw * group_.in;
    parallel_chunks(planes_, std::max<int64_t>(1, kWorthACell / std::max<int64_t>(1, work)),
                    [&](int64_t begin, int64_t end) {
                      int64_t held = -1;  // the group that this thread has a copy of
                      for (int64_t i = begin; i < end; ++i) {
                        const int64_t group = i / group_.out;
                        run_plane(i, end, readable(group, group == held));
                        held = group;
                      }
                    });
  }

 private:
  /// Plane i of those before `end` that one thread makes in their order.
  void run_plane(int64_t i, int64_t end, const T* source) const {
    const int64_t channel = inside_ == 1 ? i % channels_ : 0, width = x_.output * inside_;
    // Rows of taps are in the order of the one phase where several channels are summed over.
    const bool sums = group_.in > 1;
    const int64_t row = p_.kw * pitch_, first_row = sums ? 0 : rows_.kernel;
    const DepthwisePlane plane{.source = source,
                               .height = y_.source,
                               .width = x_.source * inside_,
                               .rows = p_.kh,
                               .taps = p_.kw,
                               .weight_row = (sums ? group_.in : rows_.kernel_step) * row,
                               .weight_tap = columns_.kernel_step * pitch_,
                               .out_height = y_.output,
                               .out_width = width,
                               .top = rows_.offset,
                               .left = columns_.offset * inside_,
                               .step = columns_.offset_step * inside_,
                               .sources = group_.in,
                               .weight_source = row,
                               .channels = inside_ == 1 ? 0 : inside_};
    const float* weight = weight_ + first_row * row + columns_.kernel * pitch_ + channel;
    const DepthwiseStore after{after_.shift ? after_.shift + channel : nullptr, after_.activation};
    T* to = out_ + i * out_items_;
    // What is written behind a plane is overwritten by the next of this thread, if there is one.
    const bool ends_inside = width >= kVector || (end - i - 1) * out_items_ >= kVector;
    if (ends_inside) return kernel_.store_plane(plane, weight, after, to);
    kernel_.store_plane(plane, weight, after, outs_.get());
    std::copy_n(outs_.get(), out_items_, to);
  }

  /// The source's planes of a group, or a mapped copy of them, with memory around; `held`: which
  /// the thread has.
  const T* readable(int64_t group, bool held) const {
    const int64_t planes = group_.in, items = planes * items_, i = group * planes;
    const int64_t behind = (planes_ / group_.out - group - 1) * items;
    const T* from = source_ + group * items;
    if (!map_.scale && group * items >= before_ && behind >= behind_) return from;
    T* to = copies_.get() + before_;
    if (held) return to;
    if (!map_.scale) return std::copy_n(from, items, to), to;
    const bool one = inside_ == 1;
    const MapCopy matrix{
        .src = from,
        .src_stride = one ? items_ : inside_,
        .dst = to,
        .dst_stride = one ? items_ : inside_,
        .rows = one ? planes : items_ / inside_,
        .cols = one ? items_ : inside_,
        .map = from_channel<float>(map_, one ? i % (channels_ / group_.out * planes) : 0),
        .rows_are_channels = one};
    map_matrix<T>(matrix);
    return to;
  }

  const ConvProblem& p_;
  const Axis &y_, &x_;
  const Phase &rows_, &columns_;  // the only ones
  const DepthwiseKernel& kernel_;
  const T* const source_;
  T* const out_;
  const ChannelMap map_;
  const int64_t inside_;              // channels in a row
  const int64_t channels_;            // of the output
  const Spread group_;                // planes of the source that some of the output sum over
  const int64_t planes_;              // of the output
  const int64_t items_, out_items_;   // of a plane
  const int64_t before_, behind_;     // elements that vectors read around a plane
  const int64_t pitch_;               // of a tap's weights
  const PerThread<T> copies_, outs_;  // a plane each
  const Workspace repeated_;          // [tap][pitch], and shifts, where several channels are inside
  const float* weight_;
  DepthwiseStore after_;
};

}  // namespace

bool suits_depthwise_planes(const ConvProblem& p) {
  const bool last = p.format == MemoryFormat::channels_last;
  if (last && (p.oc >= kDepthwiseChannels || p.groups != p.ic || p.ic != p.oc || p.x_gap != 0 ||
               p.y_gap != 0))
    return false;
  const int64_t inside = last ? p.ic : 1;
  const int64_t planes = std::max(p.ic, p.oc) / p.groups * inside;
  if (std::max(p.ih * p.iw, p.oh * p.ow) > kMostItems / planes) return false;
  return std::min(p.iw, p.ow) * inside >= kLeastWidth && p.stride_h == 1 && p.stride_w == 1 &&
         (p.dilation_h == 1 || p.kh == 1) && takes_plane_rows(p.kh);
}

void run_depthwise_planes(const DepthwisePlan& plan, const void* source, const void* packed,
                          const ChannelMap& map, const Epilogue& epilogue, void* output) {
  if (plan.problem.dtype == DType::bf16)
    DepthwisePlanes<bfloat16>(plan, source, packed, map, epilogue, output).run();
  else DepthwisePlanes<float>(plan, source, packed, map, epilogue, output).run();
}

}  // namespace quern::kernels
