// The contract of an optimizer's update: one pass over n elements of a parameter, its gradient and
// its state, with the constants of this step, all in f32 or all in f64. (Parameters in bf16 and f16
// are widened before: optim/detail/in_f32.h.) Files compiled with ISA flags include this.
#pragma once
#include <cstdint>

#include "quern/ops/kernels/unit.h"

namespace quern::kernels {

struct UpdateSpan {
  void* param;       // [n], read and written
  const void* grad;  // [n]
  void* state[2];    // [n] each, read and written; null where the rule keeps none
  int64_t n;
};

/// SGD (formula in optim/sgd.h); state: momentum buffer.
struct SgdStep {
  double lr, momentum, dampening, weight_decay;
  bool nesterov;
  bool first;  // the buffer is written without being read (it may hold NaN)
};

/// AdamW and Adam (formulas in optim/adamw.h, optim/adam.h); state: exp_avg, exp_avg_sq.
struct AdamWStep {
  double decay;         // AdamW's: 1 - lr·weight_decay; 1 for Adam
  double beta1, beta2;  //
  double step_size;     // lr / (1 - beta1^t)
  double scale;         // 1 / sqrt(1 - beta2^t)
  double eps;
  double l2 = 0;  // Adam's weight_decay, which the gradient takes on
};

/// RMSprop (formula in optim/rmsprop.h);
/// state: square_avg, momentum_buffer (null without momentum).
struct RmspropStep {
  double lr, alpha, eps, momentum, weight_decay;
};

/// Formula in optim/adagrad.h; state: sum.
struct AdagradStep {
  double lr, eps, l2;  // lr as it has decayed
};
/// Formula in optim/adadelta.h; states: square_avg, acc_delta.
struct AdadeltaStep {
  double lr, rho, eps, l2;
};
/// Formula in optim/adamax.h; states: exp_avg, exp_inf.
struct AdamaxStep {
  double step_size, beta1, beta2, eps, l2;  // step_size: lr / (1 - beta1^t)
};
/// Formula in optim/nadam.h; states: exp_avg, exp_avg_sq.
struct NAdamStep {
  double by_grad, by_moment;  // what the two are multiplied by
  double beta1, beta2;
  double scale;  // 1 / sqrt(1 - beta2^t)
  double eps, l2;
};
/// Formula in optim/radam.h; states: exp_avg, exp_avg_sq.
struct RAdamStep {
  double step_size;  // rectified, where it is
  double beta1, beta2, eps, l2;
  bool rectified;
};
/// Formula in optim/asgd.h; state: ax.
struct AsgdStep {
  double eta, mu, decay, l2;  // decay: 1 - lambd·eta
};
/// Formula in optim/lamb.h; states: exp_avg, exp_avg_sq.
struct LambStep {
  double beta1, beta2;
  double by_m, by_v;  // 1 / (1 - beta1^t), 1 / sqrt(1 - beta2^t)
  double eps, weight_decay;
  bool measures;  // the states take the gradient on, and the parameter becomes u; else it moves
  double rate;    // lr·r, by which it does
};
/// Formula in optim/rprop.h; states: prev, step_size.
struct RpropStep {
  double less, more, smallest, largest;
};

template <class Step>
struct UpdateKernel {
  const char* name;  // <rule>_<dtype>_<isa>; the naive one ends in _reference
  Isa isa;
  DType dtype;
  void (*run)(const Step&, const UpdateSpan&);
};
using SgdKernel = UpdateKernel<SgdStep>;
using AdamWKernel = UpdateKernel<AdamWStep>;
using RmspropKernel = UpdateKernel<RmspropStep>;
using AdagradKernel = UpdateKernel<AdagradStep>;
using AdadeltaKernel = UpdateKernel<AdadeltaStep>;
using AdamaxKernel = UpdateKernel<AdamaxStep>;
using NAdamKernel = UpdateKernel<NAdamStep>;
using RAdamKernel = UpdateKernel<RAdamStep>;
using AsgdKernel = UpdateKernel<AsgdStep>;
using LambKernel = UpdateKernel<LambStep>;
using RpropKernel = UpdateKernel<RpropStep>;

}  // namespace quern::kernels
