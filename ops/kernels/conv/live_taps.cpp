#include "quern/ops/kernels/conv/live_taps.h"

#include <algorithm>
#include <cstring>

#include "quern/tensor/storage.h"

namespace quern::kernels {
namespace {

/// Of the taps along an axis. Tap r of output i reads pixel i·stride + r·dilation - pad: the last
/// output before the first pixel, the first output beyond the last one, and all others do.
Extent live_taps(int64_t pixels, int64_t outputs, int64_t taps, int64_t stride, int64_t pad,
                 int64_t dilation) {
  const int64_t before = pad - (outputs - 1) * stride;  // of the first pixel, for tap 0
  const int64_t begin = before > 0 ? ceil_div(before, dilation) : 0;
  const int64_t end = std::min(taps, ceil_div(pixels + pad, dilation));
  // A problem has no negative padding, and at least one tap.
  if (begin >= end || begin * dilation > pad) return {0, taps};
  return {begin, end - begin};
}

}  // namespace

LiveTaps live_taps(const ConvProblem& p) {
  return {live_taps(p.ih, p.oh, p.kh, p.stride_h, p.pad_h, p.dilation_h),
          live_taps(p.iw, p.ow, p.kw, p.stride_w, p.pad_w, p.dilation_w)};
}

class LiveTapsPlan final : public ConvPlan {
 public:
  LiveTapsPlan(const ConvProblem& whole, std::unique_ptr<const ConvPlan> live)
      : ConvPlan({whole, live->pass, live->kernel, live->gemm, live->bf16_terms}),
        live_(std::move(live)),
        rows_(live_taps(whole).rows),
        columns_(live_taps(whole).columns) {}

  int64_t packed_bytes() const override { return live_->packed_bytes(); }
  int64_t wanted_gap() const override { return live_->wanted_gap(); }
  bool differentiates_at_once() const override { return live_->differentiates_at_once(); }

  void pack(const void* weight, DType of_weight, void* packed) const override {
    const Workspace taps(live_items() * itemsize(of_weight));
    each_row(itemsize(of_weight), [&](int64_t whole, int64_t live, size_t bytes) {
      std::memcpy(taps.as<std::byte>() + live, static_cast<const std::byte*>(weight) + whole,
                  bytes);
    });
    live_->pack(taps.as<std::byte>(), of_weight, packed);
  }

 private:
  int64_t filters() const { return problem.oc * (problem.ic / problem.groups); }
  int64_t live_items() const { return filters() * rows_.size * columns_.size; }
  /// f(where a row of live taps is in the weight, where in that of the live ones, its size), bytes.
  template <class F>
  void each_row(int64_t item, F f) const {
    for (int64_t i = 0; i < filters(); ++i)
      for (int64_t r = 0; r < rows_.size; ++r)
        f(((i * problem.kh + rows_.begin + r) * problem.kw + columns_.begin) * item,
          (i * rows_.size + r) * columns_.size * item, static_cast<size_t>(columns_.size * item));
  }
  /// compute(gradients of the live taps), and those of all to dw.
  template <class Compute>
  void differentiate(void* dw, Compute compute) const {
    const int64_t item = itemsize(accumulator(problem.dtype));
    const Workspace taps(live_items() * item);
    compute(taps.as<std::byte>());
    std::fill_n(static_cast<std::byte*>(dw), filters() * problem.kh * problem.kw * item,
                std::byte{});
    each_row(item, [&](int64_t whole, int64_t live, size_t bytes) {
      std::memcpy(static_cast<std::byte*>(dw) + whole, taps.as<std::byte>() + live, bytes);
    });
  }

  void compute(const void* from, const void* with, void* to, const Epilogue& epilogue,
               const ChannelMap& prologue) const override {
    if (pass != ConvPass::wgrad) return live_->compute(from, with, to, epilogue, prologue);
    differentiate(to, [&](void* taps) { live_->compute(from, with, taps, epilogue, prologue); });
  }
  void compute_both(const void* dy, const void* weight, void* dx, void* dw,
                    const Epilogue& epilogue) const override {
    differentiate(dw, [&](void* taps) { live_->compute_both(dy, weight, dx, taps, epilogue); });
  }

  const std::unique_ptr<const ConvPlan> live_;
  const Extent rows_, columns_;
};

ConvProblem with_live_taps(const ConvProblem& problem) {
  const auto [rows, columns] = live_taps(problem);
  ConvProblem live = problem;
  live.kh = rows.size, live.pad_h -= rows.begin * problem.dilation_h;
  live.kw = columns.size, live.pad_w -= columns.begin * problem.dilation_w;
  return live;
}

std::unique_ptr<const ConvPlan> plan_of_live_taps(const ConvProblem& problem,
                                                  std::unique_ptr<const ConvPlan> live) {
  if (live->problem == problem) return live;
  return std::make_unique<const LiveTapsPlan>(problem, std::move(live));
}

}  // namespace quern::kernels
