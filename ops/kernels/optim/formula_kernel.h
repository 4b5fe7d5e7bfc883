// More updates by the contract of update_kernel.h, each written once (formulas.h), for scalars and
// vectors. A struct has the constants of a step; the states are told beside it.
#pragma once
#include "quern/ops/kernels/optim/update_kernel.h"

namespace quern::kernels {

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

using AdagradKernel = UpdateKernel<AdagradStep>;
using AdadeltaKernel = UpdateKernel<AdadeltaStep>;
using AdamaxKernel = UpdateKernel<AdamaxStep>;
using NAdamKernel = UpdateKernel<NAdamStep>;
using RAdamKernel = UpdateKernel<RAdamStep>;
using AsgdKernel = UpdateKernel<AsgdStep>;
using LambKernel = UpdateKernel<LambStep>;
using RpropKernel = UpdateKernel<RpropStep>;

}  // namespace quern::kernels
