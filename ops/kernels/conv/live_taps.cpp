#include "quern/ops/kernels/conv/live_taps.h"

#include <algorithm>
#include <cstring>

#include "quern/tensor/storage.h"

namespace quern::kernels {

class LiveTapsPlan final : public ConvPlan {
 public:
  LiveTapsPlan(const ConvProblem& whole, std::unique_ptr<const ConvPlan> live)
      : ConvPlan({whole, live->pass, live->kernel, live->gemm, live->bf16_terms}),
        live_(std::move(live)),
        rows_(whole.live_taps().rows),
        columns_(whole.live_taps().columns) {}

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

std::unique_ptr<const ConvPlan> plan_of_live_taps(const ConvProblem& whole,
                                                  std::unique_ptr<const ConvPlan> live) {
  return std::make_unique<const LiveTapsPlan>(whole, std::move(live));
}

}  // namespace quern::kernels
