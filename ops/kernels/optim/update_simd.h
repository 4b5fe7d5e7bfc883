// The f32 updates on vectors of xsimd, once an instruction set. A pass streams 20 bytes an element
// (SGD with momentum) or 28 (AdamW) against a handful of operations: memory is the bound, so
// nothing is unrolled.
#pragma once
#include <cstdint>

#include "quern/ops/kernels/optim/update_kernel.h"
#include "quern/ops/kernels/simd.h"

namespace quern::kernels {
namespace {

/// Calls body(p, g, s0, s1) on the vectors of a span and stores p and the first `states` of s0, s1.
/// The tail goes through zero-padded copies: every element sees the same instructions.
template <class V, class F>
void each_vector(const UpdateSpan& span, int states, F body) {
  constexpr int64_t lanes = V::size;
  auto run = [&](float* param, const float* grad, float* s0, float* s1) {
    V p = V::load_unaligned(param), g = V::load_unaligned(grad);
    V a(0.0f), b(0.0f);
    if (states > 0) a = V::load_unaligned(s0);
    if (states > 1) b = V::load_unaligned(s1);
    body(p, g, a, b);
    p.store_unaligned(param);
    if (states > 0) a.store_unaligned(s0);
    if (states > 1) b.store_unaligned(s1);
  };

  float* param = static_cast<float*>(span.param);
  const float* grad = static_cast<const float*>(span.grad);
  float* s0 = static_cast<float*>(span.state[0]);
  float* s1 = static_cast<float*>(span.state[1]);
  int64_t i = 0;
  for (; i + lanes <= span.n; i += lanes)
    run(param + i, grad + i, states > 0 ? s0 + i : nullptr, states > 1 ? s1 + i : nullptr);

  const int64_t tail = span.n - i;
  if (tail == 0) return;
  float padded[4][lanes] = {};
  for (int64_t j = 0; j < tail; ++j) {
    padded[0][j] = param[i + j], padded[1][j] = grad[i + j];
    if (states > 0) padded[2][j] = s0[i + j];
    if (states > 1) padded[3][j] = s1[i + j];
  }
  run(padded[0], padded[1], padded[2], padded[3]);
  for (int64_t j = 0; j < tail; ++j) {
    param[i + j] = padded[0][j];
    if (states > 0) s0[i + j] = padded[2][j];
    if (states > 1) s1[i + j] = padded[3][j];
  }
}

void sgd(const SgdStep& step, const UpdateSpan& span) {
  using V = Vec<float>;
  const V lr(static_cast<float>(step.lr)), momentum(static_cast<float>(step.momentum));
  const V keep(static_cast<float>(1 - step.dampening));
  const V weight_decay(static_cast<float>(step.weight_decay));
  const bool decays = step.weight_decay != 0, remembers = step.momentum != 0;

  each_vector<V>(span, remembers ? 1 : 0, [&](V& p, V g, V& buffer, V&) {
    if (decays) g = fused(weight_decay, p, g);
    if (remembers) {
      buffer = step.first ? g : fused(momentum, buffer, keep * g);
      g = step.nesterov ? fused(momentum, buffer, g) : buffer;
    }
    p = fused_minus(lr, g, p);
  });
}

void adamw(const AdamWStep& step, const UpdateSpan& span) {
  using V = Vec<float>;
  const V decay(static_cast<float>(step.decay)), beta2(static_cast<float>(step.beta2));
  const V take1(static_cast<float>(1 - step.beta1)), take2(static_cast<float>(1 - step.beta2));
  const V step_size(static_cast<float>(step.step_size));
  const V scale(static_cast<float>(step.scale)), eps(static_cast<float>(step.eps));
  const V l2(static_cast<float>(step.l2));
  const bool decays = step.l2 != 0;

  each_vector<V>(span, 2, [&](V& p, V g, V& m, V& v) {
    if (decays) g = fused(l2, p, g);
    m = fused(take1, g - m, m);
    v = fused(beta2, v, take2 * g * g);
    p = decay * p - quotient(step_size * m, fused(square_root(v), scale, eps));
  });
}

void rmsprop(const RmspropStep& step, const UpdateSpan& span) {
  using V = Vec<float>;
  const V lr(static_cast<float>(step.lr)), eps(static_cast<float>(step.eps));
  const V alpha(static_cast<float>(step.alpha)), take(static_cast<float>(1 - step.alpha));
  const V momentum(static_cast<float>(step.momentum));
  const V weight_decay(static_cast<float>(step.weight_decay));
  const bool decays = step.weight_decay != 0, remembers = step.momentum != 0;

  each_vector<V>(span, remembers ? 2 : 1, [&](V& p, V g, V& v, V& buffer) {
    if (decays) g = fused(weight_decay, p, g);
    v = fused(alpha, v, take * g * g);
    V step_by = quotient(g, square_root(v) + eps);
    if (remembers) step_by = buffer = fused(momentum, buffer, step_by);
    p = fused_minus(lr, step_by, p);
  });
}

constexpr SgdKernel kSgd[] = {{QUERN_NAMED("sgd_f32"), kIsa, DType::f32, sgd}};
constexpr AdamWKernel kAdamW[] = {{QUERN_NAMED("adamw_f32"), kIsa, DType::f32, adamw}};

constexpr RmspropKernel kRmsprop[] = {{QUERN_NAMED("rmsprop_f32"), kIsa, DType::f32, rmsprop}};

}  // namespace

QUERN_KERNELS(SgdKernel, sgd, kSgd)
QUERN_KERNELS(AdamWKernel, adamw, kAdamW)
QUERN_KERNELS(RmspropKernel, rmsprop, kRmsprop)

}  // namespace quern::kernels
