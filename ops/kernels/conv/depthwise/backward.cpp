// Both gradients of conv_depthwise at once.
//
//   cells are [range of rows of x, over all images][panel of channels]
//     for each row of x in the range, for each phase of it along x (axis.h)
//       its gradient, and what it adds to the weight's           backward_simd.h
//   dw and the sums of the epilogue = those of the ranges, merged in their order
#include <algorithm>

#include "quern/ops/kernels/blocking.h"
#include "quern/ops/kernels/conv/depthwise/depthwise.h"
#include "quern/ops/kernels/conv/epilogue/epilogue.h"
#include "quern/tensor/per_thread.h"

namespace quern::kernels {
namespace {

template <class T>
class DepthwiseBackwardEngine {
  /// Pixels whose products are summed before the cell's sums take them in, which bounds the error.
  static constexpr int64_t kPixels = PanelSums<float>::kRows;

 public:
  DepthwiseBackwardEngine(const DepthwisePlan& plan, const void* dy, const void* weight,
                          const Epilogue& epilogue, void* dx, float* dw)
      : plan_(plan),
        p_(plan.problem),
        dy_(dy, p_.format, p_.n, p_.oc, p_.oh, p_.ow, p_.y_gap),
        x_strides_(p_.format, p_.ic, p_.ih, p_.iw, p_.x_gap),
        weight_(static_cast<const float*>(weight)),
        epilogue_(epilogue),
        dx_(static_cast<T*>(dx)),
        dw_(dw),
        channels_(p_.oc),
        panels_(channels_, depthwise_panel(plan.taps, channels_, cache::kDepthwiseWeights / 2)),
        parts_(std::clamp<int64_t>(
            ceil_div(wanted_cells(2 * p_.n * channels_ * p_.oh * p_.ow * plan.taps), panels_.count),
            1, p_.n * p_.ih)),
        sums_((plan.taps + 2) * channels_),
        products_(parts_ * plan.taps * channels_ * static_cast<int64_t>(sizeof(float))),
        totals_(parts_ * 2 * channels_ * static_cast<int64_t>(sizeof(double))) {}

  void run() const {
    parallel_for(parts_ * panels_.count, [&](int64_t cell) {
      run_cell(cell / panels_.count, panels_[cell % panels_.count]);
    });
    parallel_chunks(channels_, 64, [&](int64_t begin, int64_t end) { merge(begin, end); });
  }

 private:
  float* products(int64_t part) const {
    return products_.as<float>() + part * plan_.taps * channels_;
  }
  double* total(int64_t part, int64_t which) const {
    return totals_.as<double>() + (2 * part + which) * channels_;
  }
  bool has_sums() const { return epilogue_.first != nullptr; }

  /// [tap][channel], then [first, second][channel], of kPixels pixels at most, to the cell's; they
  /// are 0 then.
  void flush(float* sums, int64_t part, Extent channels) const;
  void run_cell(int64_t part, Extent channels) const;
  void merge(int64_t begin, int64_t end) const;

  const DepthwisePlan& plan_;
  const ConvProblem& p_;
  const DepthwiseSource<T> dy_;
  const ImageStrides x_strides_;
  const float* const weight_;  // [tap][channel]
  const Epilogue epilogue_;
  T* const dx_;
  float* const dw_;
  const int64_t channels_;
  const ChannelPanels panels_;
  const int64_t parts_;
  const PerThread<float> sums_;
  const Workspace products_;  // [part][tap][channel]
  const Workspace totals_;    // [part][first, second][channel]
};

template <class T>
void DepthwiseBackwardEngine<T>::flush(float* sums, int64_t part, Extent channels) const {
  const int64_t taps = plan_.taps;
  for (int64_t t = 0; t < taps; ++t) {
    float* from = sums + t * channels_ + channels.begin;
    float* to = products(part) + t * channels_ + channels.begin;
    for (int64_t c = 0; c < channels.size; ++c) to[c] += from[c], from[c] = 0;
  }
  for (int64_t i = 0; has_sums() && i < 2; ++i) {
    float* from = sums + (taps + i) * channels_ + channels.begin;
    double* to = total(part, i) + channels.begin;
    for (int64_t c = 0; c < channels.size; ++c) to[c] += static_cast<double>(from[c]), from[c] = 0;
  }
}

template <class T>
void DepthwiseBackwardEngine<T>::run_cell(int64_t part, Extent channels) const {
  float* const sums = sums_.get();
  for (int64_t i = 0; i < plan_.taps + 2; ++i)
    std::fill_n(sums + i * channels_ + channels.begin, channels.size, 0.0f);
  for (int64_t t = 0; t < plan_.taps; ++t)
    std::fill_n(products(part) + t * channels_ + channels.begin, channels.size, 0.0f);
  for (int64_t i = 0; i < 2; ++i) std::fill_n(total(part, i) + channels.begin, channels.size, 0.0);

  const ChannelMap map =
      has_sums() ? from_channel<float>(epilogue_.map, channels.begin) : ChannelMap{};
  constexpr int64_t item = sizeof(T);
  const int64_t x_bytes = p_.n * x_strides_.n * item;
  const bool streams = x_bytes > cache::l2();
  const bool bypasses =
      cache::bypassed(dx_, x_bytes, x_strides_.x * item, cache::read_by_products());
  const Extent rows = piece(p_.n * p_.ih, parts_, part);
  int64_t pending = 0;  // pixels of `sums`
  for (int64_t at = rows.begin; at < rows.begin + rows.size; ++at) {
    const int64_t image = at / p_.ih, row = at % p_.ih;
    const auto dy = dy_.view(image, {}, channels, nullptr);
    const auto read = plan_.rows_read(row);
    const int64_t first = image * x_strides_.n + row * x_strides_.y + channels.begin;
    for (const Phase& phase : plan_.x_phases) {
      auto [window, tap] = plan_.window(read, phase, dy, channels, streams);
      if (window.taps == 0) window.rows = 0, window.taps = 1;
      for (int64_t i = 0; i < phase.count; i += kPixels) {
        window.outputs = std::min(kPixels, phase.count - i);
        window.offset = phase.offset + i;
        if (pending + window.outputs > kPixels) flush(sums, part, channels), pending = 0;
        pending += window.outputs;
        const int64_t place = first + (phase.start + i * plan_.x.output_step) * x_strides_.x;
        plan_.kernel.backward(window, weight_ + tap,
                              {.x = static_cast<const T*>(epilogue_.x) + place,
                               .dx = dx_ + place,
                               .pixel = plan_.x.output_step * x_strides_.x,
                               .map = map,
                               .gradient = sums + tap,
                               .first = sums + plan_.taps * channels_ + channels.begin,
                               .second = sums + (plan_.taps + 1) * channels_ + channels.begin,
                               .to_next_row = streams ? x_strides_.y : 0,
                               .streams = bypasses});
      }
    }
  }
  flush(sums, part, channels);
}

template <class T>
void DepthwiseBackwardEngine<T>::merge(int64_t begin, int64_t end) const {
  const int64_t taps = plan_.taps, n = end - begin;
  for (int64_t part = 1; part < parts_; ++part)
    for (int64_t t = 0; t < taps; ++t) {
      float* to = products(0) + t * channels_ + begin;
      const float* from = products(part) + t * channels_ + begin;
      for (int64_t c = 0; c < n; ++c) to[c] += from[c];
    }
  copy_matrix(sizeof(float), products(0) + begin, 1, channels_, dw_ + begin * taps, taps, n, taps);
  for (int64_t i = 0; has_sums() && i < 2; ++i) {
    double* to = static_cast<double*>(i == 0 ? epilogue_.first : epilogue_.second) + begin;
    std::fill_n(to, n, 0.0);
    for (int64_t part = 0; part < parts_; ++part)
      for (int64_t c = 0; c < n; ++c) to[c] += total(part, i)[begin + c];
  }
}

}  // namespace

void run_depthwise_backward(const DepthwisePlan& plan, const void* dy, const void* packed, void* dx,
                            float* dw, const Epilogue& epilogue) {
  if (plan.problem.dtype == DType::bf16)
    DepthwiseBackwardEngine<bfloat16>(plan, dy, packed, epilogue, dx, dw).run();
  else DepthwiseBackwardEngine<float>(plan, dy, packed, epilogue, dx, dw).run();
}

}  // namespace quern::kernels
