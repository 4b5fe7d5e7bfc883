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

/// RMSprop (formula in optim/rmsprop.h); state: square_avg, momentum_buffer (null without momentum).
struct RmspropStep {
  double lr, alpha, eps, momentum, weight_decay;
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

}  // namespace quern::kernels
