// Idle steps of Adam and AdamW. Without a gradient the moments shrink, m by β₁ and v by β₂, and the
// weight goes on by lr / (1 - β₁ᵗ) · m / (√v / √(1 - β₂ᵗ) + eps), which has no closed form: eps
// keeps it from being a sum of one and the same quotient. But it shrinks by β₁/√β₂ a step. So the
// first steps are done one after the other, by the kernel and with the bits of the dense
// optimizer's, until what is left sums up to less than their rounding: 214 for f32 and the usual
// betas, 406 for f64. The others only shrink m and v, and the weight by AdamW's decay:
// one step more does them all.
#pragma once
#include <cmath>

#include "quern/ops/kernels/optim/update.h"
#include "quern/optim/detail/idle_rows.h"
#include "quern/optim/detail/update_pass.h"

namespace quern::optim {

class AdamIdle final : public IdleRows {
 public:
  AdamIdle(const Tensor& param, double beta1, double beta2)
      : IdleRows(param.size(0)),
        kernel_(kernels::select_adamw_kernel(param.dtype())),
        no_grad_(zeros({param.numel() / std::max<int64_t>(1, param.size(0))},
                       state_dtype(param.dtype()))),
        beta1_(beta1),
        beta2_(beta2) {
    // At one rate, sizes are β₁ⁱ/√β₂ⁱ but for a factor of at most 32: √(1 - β₂ᵗ) of the first step.
    const double shrinks = beta1 / std::sqrt(beta2);
    const double unit = param.dtype() == DType::f64 ? 0x1p-53 : 0x1p-24;
    if (beta1 > 0)
      most_ = static_cast<size_t>(std::log(unit * (1 - shrinks) / 32) / std::log(shrinks)) + 1;
  }

  void reserve() override {
    decays_.reserve();
    if (steps_.size() == steps_.capacity()) steps_.reserve(2 * steps_.size() + 8);
  }
  void remember(const kernels::AdamWStep& step, const Tensor& grad) noexcept {
    decays_.append(step.decay);
    steps_.push_back(step);
    stepped(grad);
  }

 private:
  void run(kernels::UpdateSpan span, size_t begin, size_t end, DType rounds_to) const override {
    span.grad = no_grad_.data_ptr();
    const size_t singly = std::min(end, begin + most_);
    for (size_t i = begin; i < singly; ++i) {
      kernel_.run(steps_[i], span);
      if (rounds_to != state_dtype(rounds_to))
        round_to(rounds_to, static_cast<float*>(span.param), span.n);
    }
    if (singly == end) return;
    const auto left = static_cast<double>(end - singly);
    kernel_.run({.decay = decays_.of(singly, end),
                 .beta1 = std::pow(beta1_, left),
                 .beta2 = std::pow(beta2_, left),
                 .step_size = 0,
                 .scale = 1,
                 .eps = 1},
                span);
  }
  void forget() noexcept override {
    decays_.clear();
    steps_.clear();
  }

  const kernels::AdamWKernel& kernel_;
  Tensor no_grad_;
  double beta1_, beta2_;
  size_t most_ = 1;
  std::vector<kernels::AdamWStep> steps_;
  Products<double> decays_;
};

}  // namespace quern::optim
