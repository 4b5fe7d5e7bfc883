// The formulas of update_kernel.h, over V: a number, or a vector of them. A file that includes this
// has said before what constant<V>(), fused(), square_root() and the others are for its V. p is the
// parameter, g its gradient, then come the states. Sums of products are fused() by name, lest a
// compiler do so in one loop and not in another: bits must not depend on where an element lies.
#pragma once
#include "quern/ops/kernels/optim/update_kernel.h"

namespace quern::kernels {
namespace {

/// How many states a step reads and writes.
template <class Step>
constexpr int states_of(const Step&) {
  return 2;
}
constexpr int states_of(const SgdStep& o) { return o.momentum != 0 ? 1 : 0; }
constexpr int states_of(const RmspropStep& o) { return o.momentum != 0 ? 2 : 1; }
constexpr int states_of(const AdagradStep&) { return 1; }
constexpr int states_of(const AsgdStep&) { return 1; }

/// g + weight_decay·p
template <class V>
V decayed(double l2, V p, V g) {
  return l2 == 0 ? g : fused(constant<V>(l2), p, g);
}

/// Adam's means of the gradient and of its square.
template <class Step, class V>
void add_to_moments(const Step& o, V g, V& m, V& v) {
  const auto c = constant<V>;
  m = fused(c(1 - o.beta1), g - m, m);
  v = fused(c(o.beta2), v, c(1 - o.beta2) * g * g);
}

template <class V>
void update(const SgdStep& o, V& p, V g, V& buffer, V&) {
  const auto c = constant<V>;
  g = decayed(o.weight_decay, p, g);
  if (o.momentum != 0) {
    buffer = o.first ? g : fused(c(o.momentum), buffer, c(1 - o.dampening) * g);
    g = o.nesterov ? fused(c(o.momentum), buffer, g) : buffer;
  }
  p = fused_minus(c(o.lr), g, p);
}

template <class V>
void update(const AdamWStep& o, V& p, V g, V& m, V& v) {
  const auto c = constant<V>;
  g = decayed(o.l2, p, g);
  add_to_moments(o, g, m, v);
  const V by = quotient(c(o.step_size) * m, fused(square_root(v), c(o.scale), c(o.eps)));
  p = fused(c(o.decay), p, -by);
}

template <class V>
void update(const RmspropStep& o, V& p, V g, V& v, V& buffer) {
  const auto c = constant<V>;
  g = decayed(o.weight_decay, p, g);
  v = fused(c(o.alpha), v, c(1 - o.alpha) * g * g);
  V by = quotient(g, square_root(v) + c(o.eps));
  if (o.momentum != 0) by = buffer = fused(c(o.momentum), buffer, by);
  p = fused_minus(c(o.lr), by, p);
}

template <class V>
void update(const AdagradStep& o, V& p, V g, V& sum, V&) {
  const auto c = constant<V>;
  g = decayed(o.l2, p, g);
  sum = fused(g, g, sum);
  p = p - quotient(c(o.lr) * g, square_root(sum) + c(o.eps));
}

template <class V>
void update(const AdadeltaStep& o, V& p, V g, V& square_avg, V& acc_delta) {
  const auto c = constant<V>;
  g = decayed(o.l2, p, g);
  square_avg = fused(c(o.rho), square_avg, c(1 - o.rho) * g * g);
  const V by = quotient(square_root(acc_delta + c(o.eps)), square_root(square_avg + c(o.eps))) * g;
  acc_delta = fused(c(o.rho), acc_delta, c(1 - o.rho) * by * by);
  p = fused_minus(c(o.lr), by, p);
}

template <class V>
void update(const AdamaxStep& o, V& p, V g, V& m, V& norm) {
  const auto c = constant<V>;
  g = decayed(o.l2, p, g);
  m = fused(c(1 - o.beta1), g - m, m);
  norm = larger(c(o.beta2) * norm, magnitude(g) + c(o.eps));
  p = p - quotient(c(o.step_size) * m, norm);
}

template <class V>
void update(const NAdamStep& o, V& p, V g, V& m, V& v) {
  const auto c = constant<V>;
  g = decayed(o.l2, p, g);
  add_to_moments(o, g, m, v);
  const V by = fused(c(o.by_grad), g, c(o.by_moment) * m);
  p = p - quotient(by, fused(square_root(v), c(o.scale), c(o.eps)));
}

template <class V>
void update(const RAdamStep& o, V& p, V g, V& m, V& v) {
  const auto c = constant<V>;
  g = decayed(o.l2, p, g);
  add_to_moments(o, g, m, v);
  if (o.rectified) p = p - quotient(c(o.step_size) * m, square_root(v) + c(o.eps));
  else p = fused_minus(c(o.step_size), m, p);
}

template <class V>
void update(const AsgdStep& o, V& p, V g, V& ax, V&) {
  const auto c = constant<V>;
  g = decayed(o.l2, p, g);
  p = fused_minus(c(o.eta), g, c(o.decay) * p);
  ax = o.mu == 1 ? p : fused(c(o.mu), p - ax, ax);
}

template <class V>
void update(const LambStep& o, V& p, V g, V& m, V& v) {
  const auto c = constant<V>;
  if (o.measures) add_to_moments(o, g, m, v);
  const V by = quotient(c(o.by_m) * m, fused(square_root(v), c(o.by_v), c(o.eps)));
  const V u = decayed(o.weight_decay, p, by);
  p = o.measures ? u : fused_minus(c(o.rate), u, p);
}

template <class V>
void update(const RpropStep& o, V& p, V g, V& previous, V& size) {
  const auto c = constant<V>;
  const V zero = c(0), agrees = g * previous, differs = zero - agrees;
  const V factor = where_positive(agrees, c(o.more), where_positive(differs, c(o.less), c(1)));
  size = smaller(larger(size * factor, c(o.smallest)), c(o.largest));
  g = where_positive(differs, zero, g);
  p = p - where_positive(g, size, where_positive(zero - g, zero - size, g));
  previous = g;
}

/// The tables of a unit, whose records for a step are types(Step, name).
#define QUERN_FORMULA(Step, family, types)                                    \
  namespace {                                                                 \
  constexpr UpdateKernel<Step> QUERN_PASTE(k, Step)[] = types(Step, #family); \
  }                                                                           \
  QUERN_KERNELS(UpdateKernel<Step>, family, QUERN_PASTE(k, Step))

#define QUERN_FORMULAS(types)                  \
  QUERN_FORMULA(SgdStep, sgd, types)           \
  QUERN_FORMULA(AdamWStep, adamw, types)       \
  QUERN_FORMULA(RmspropStep, rmsprop, types)   \
  QUERN_FORMULA(AdagradStep, adagrad, types)   \
  QUERN_FORMULA(AdadeltaStep, adadelta, types) \
  QUERN_FORMULA(AdamaxStep, adamax, types)     \
  QUERN_FORMULA(NAdamStep, nadam, types)       \
  QUERN_FORMULA(RAdamStep, radam, types)       \
  QUERN_FORMULA(AsgdStep, asgd, types)         \
  QUERN_FORMULA(LambStep, lamb, types)         \
  QUERN_FORMULA(RpropStep, rprop, types)

}  // namespace
}  // namespace quern::kernels
