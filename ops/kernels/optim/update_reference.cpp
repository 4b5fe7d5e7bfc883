// The updates as their formulas read: the oracle, and what runs for f64 parameters.
#include <cmath>

#include "quern/ops/kernels/optim/update_kernel.h"

namespace quern::kernels {
namespace {

/// S: f32 or f64.
template <class S>
void sgd(const SgdStep& step, const UpdateSpan& span) {
  const S lr = static_cast<S>(step.lr);
  const S weight_decay = static_cast<S>(step.weight_decay);
  const S momentum = static_cast<S>(step.momentum);
  const S keep = static_cast<S>(1 - step.dampening);
  S* param = static_cast<S*>(span.param);
  const S* grad = static_cast<const S*>(span.grad);
  S* buffer = static_cast<S*>(span.state[0]);

  for (int64_t i = 0; i < span.n; ++i) {
    const S p = param[i];
    S g = grad[i];
    if (weight_decay != 0) g += weight_decay * p;
    if (momentum != 0) {
      buffer[i] = step.first ? g : momentum * buffer[i] + keep * g;
      g = step.nesterov ? g + momentum * buffer[i] : buffer[i];
    }
    param[i] = p - lr * g;
  }
}

template <class S>
void adamw(const AdamWStep& step, const UpdateSpan& span) {
  const S decay = static_cast<S>(step.decay);
  const S beta2 = static_cast<S>(step.beta2);
  const S take1 = static_cast<S>(1 - step.beta1), take2 = static_cast<S>(1 - step.beta2);
  const S step_size = static_cast<S>(step.step_size);
  const S scale = static_cast<S>(step.scale), eps = static_cast<S>(step.eps);
  const S l2 = static_cast<S>(step.l2);
  S* param = static_cast<S*>(span.param);
  const S* grad = static_cast<const S*>(span.grad);
  S* m = static_cast<S*>(span.state[0]);
  S* v = static_cast<S*>(span.state[1]);

  for (int64_t i = 0; i < span.n; ++i) {
    S g = grad[i];
    if (l2 != 0) g += l2 * param[i];
    m[i] += take1 * (g - m[i]);
    v[i] = beta2 * v[i] + take2 * g * g;
    param[i] = decay * param[i] - step_size * m[i] / (std::sqrt(v[i]) * scale + eps);
  }
}

template <class S>
void rmsprop(const RmspropStep& step, const UpdateSpan& span) {
  const S lr = static_cast<S>(step.lr), eps = static_cast<S>(step.eps);
  const S alpha = static_cast<S>(step.alpha), take = static_cast<S>(1 - step.alpha);
  const S momentum = static_cast<S>(step.momentum);
  const S weight_decay = static_cast<S>(step.weight_decay);
  S* param = static_cast<S*>(span.param);
  const S* grad = static_cast<const S*>(span.grad);
  S* v = static_cast<S*>(span.state[0]);
  S* buffer = static_cast<S*>(span.state[1]);

  for (int64_t i = 0; i < span.n; ++i) {
    const S p = param[i];
    S g = grad[i];
    if (weight_decay != 0) g += weight_decay * p;
    v[i] = alpha * v[i] + take * g * g;
    S step_by = g / (std::sqrt(v[i]) + eps);
    if (momentum != 0) step_by = buffer[i] = momentum * buffer[i] + step_by;
    param[i] = p - lr * step_by;
  }
}

constexpr SgdKernel kSgd[] = {
    {QUERN_NAMED("sgd_f32"), kIsa, DType::f32, sgd<float>},
    {QUERN_NAMED("sgd_f64"), kIsa, DType::f64, sgd<double>},
};
constexpr AdamWKernel kAdamW[] = {
    {QUERN_NAMED("adamw_f32"), kIsa, DType::f32, adamw<float>},
    {QUERN_NAMED("adamw_f64"), kIsa, DType::f64, adamw<double>},
};

constexpr RmspropKernel kRmsprop[] = {
    {QUERN_NAMED("rmsprop_f32"), kIsa, DType::f32, rmsprop<float>},
    {QUERN_NAMED("rmsprop_f64"), kIsa, DType::f64, rmsprop<double>},
};

}  // namespace

QUERN_KERNELS(SgdKernel, sgd, kSgd)
QUERN_KERNELS(AdamWKernel, adamw, kAdamW)
QUERN_KERNELS(RmspropKernel, rmsprop, kRmsprop)

}  // namespace quern::kernels
