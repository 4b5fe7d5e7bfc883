#include "quern/optim/sgd.h"

#include "quern/ops/kernels/optim/update.h"
#include "quern/optim/detail/check_options.h"
#include "quern/optim/detail/idle_rows.h"
#include "quern/optim/detail/update_pass.h"

namespace quern::optim {
namespace {

/// What steps without a gradient make of a weight and its buffer:
/// p ← pp·p + pb·b, b ← bp·p + bb·b.
struct Linear {
  double pp = 1, pb = 0, bp = 0, bb = 1;
};
Linear operator*(const Linear& y, const Linear& x) {
  return {y.pp * x.pp + y.pb * x.bp, y.pp * x.pb + y.pb * x.bb, y.bp * x.pp + y.bb * x.bp,
          y.bp * x.pb + y.bb * x.bb};
}

Linear without_grad(const kernels::SgdStep& s) {
  if (s.momentum == 0) return {.pp = 1 - s.lr * s.weight_decay};
  const double bp = s.weight_decay * (s.first ? 1 : 1 - s.dampening);
  const double bb = s.first ? 0 : s.momentum;
  const double by_p = s.nesterov ? s.weight_decay + s.momentum * bp : bp;
  const double by_b = s.nesterov ? s.momentum * bb : bb;
  return {.pp = 1 - s.lr * by_p, .pb = -s.lr * by_b, .bp = bp, .bb = bb};
}

/// As steps are linear in weight and buffer, any number of them is one 2×2 matrix.
class SgdIdle final : public IdleRows {
 public:
  explicit SgdIdle(const Tensor& param)
      : IdleRows(param.size(0)), dtype_(state_dtype(param.dtype())) {}
  void reserve() override { steps_.reserve(); }
  void remember(const kernels::SgdStep& step, const Tensor& grad) noexcept {
    steps_.append(without_grad(step));
    stepped(grad);
  }

 private:
  void run(kernels::UpdateSpan span, size_t begin, size_t end, DType) const override {
    const Linear by = steps_.of(begin, end);
    if (dtype_ == DType::f64) apply<double>(by, span);
    else apply<float>(by, span);
  }
  template <class S>
  static void apply(const Linear& by, const kernels::UpdateSpan& span) {
    const S pp = static_cast<S>(by.pp), pb = static_cast<S>(by.pb);
    const S bp = static_cast<S>(by.bp), bb = static_cast<S>(by.bb);
    S* const param = static_cast<S*>(span.param);
    S* const buffer = static_cast<S*>(span.state[0]);
    for (int64_t i = 0; i < span.n; ++i) {
      const S p = param[i], b = buffer ? buffer[i] : 0;
      param[i] = pp * p + pb * b;
      if (buffer) buffer[i] = bp * p + bb * b;
    }
  }
  void forget() noexcept override { steps_.clear(); }

  DType dtype_;
  Products<Linear> steps_;
};

}  // namespace

SGD::SGD(std::vector<Group<SGDOptions>> groups) : OptimizerOf("sgd", {"momentum_buffer"}, groups) {
  for (const SGDOptions& o : options_) {
    check_not_negative("sgd", "lr", o.lr);
    check_not_negative("sgd", "momentum", o.momentum);
    check_not_negative("sgd", "dampening", o.dampening);
    check_not_negative("sgd", "weight_decay", o.weight_decay);
    check(!o.nesterov || (o.momentum > 0 && o.dampening == 0), "sgd",
          "nesterov: expected a momentum and no dampening, got momentum {}, dampening {}",
          o.momentum, o.dampening);
  }
  for (size_t group = 0; group < options_.size(); ++group) {
    if (options_[group].momentum != 0) make_state(group);
    if (options_[group].idle == Idle::catch_up)
      make_idle(group, [](const Tensor& param) { return std::make_shared<SgdIdle>(param); });
  }
}

void SGD::step() {
  const std::vector<Slot*> slots = slots_to_update();
  UpdatePass<kernels::SgdStep> pass("sgd");
  std::vector<kernels::SgdStep> steps;
  for (Slot* slot : slots) {
    const SGDOptions& o = options_[slot->group];
    const kernels::SgdStep step{.lr = o.lr,
                                .momentum = o.momentum,
                                .dampening = o.dampening,
                                .weight_decay = o.weight_decay,
                                .nesterov = o.nesterov,
                                .first = slot->steps == 0};
    steps.push_back(step);
    pass.add(kernels::select_sgd_kernel(slot->param.dtype()), step, *slot, o.momentum != 0 ? 1 : 0);
  }
  pass.run();
  for (size_t i = 0; i < slots.size(); ++i) {
    if (slots[i]->idle)
      static_cast<SgdIdle&>(*slots[i]->idle).remember(steps[i], slots[i]->param.grad());
    ++slots[i]->steps;
  }
}

}  // namespace quern::optim
