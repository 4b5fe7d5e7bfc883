// Autocast: which ops compute in bf16. PyTorch's lists, written as one policy an op beside its
// checks:
//   lower   conv2d, linear, matmul           floating inputs to bf16
//   widen   losses, softmax, norms, exp, log, pow, sum, mean: bf16 inputs to f32
//   follow  relu, add, pools, ...            computed in the dtype they come in
//   widest  cat, stack                       to the widest of the inputs
// Only f32 and bf16 are cast; f64 and integers are left alone.
#pragma once
#include "quern/tensor/tensor.h"

namespace quern {

/// Turns autocast on (or off) in this thread for a scope.
class AutocastGuard {
 public:
  explicit AutocastGuard(bool enabled = true);  ///< until its end
  ~AutocastGuard();
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;

 private:
  bool before_;
};
bool autocast_enabled();  ///< in this thread

/// What ops ask for under autocast.
namespace autocast {
/// Under autocast, f32 to bf16 (recorded as a `to`); else `t` itself. The bf16 copy of a leaf that
/// requires a gradient (a weight) is kept until the leaf's storage changes or dies.
Tensor lower(const Tensor& t);
/// Under autocast, bf16 to f32; else `t` itself.
Tensor widen(const Tensor& t);
}  // namespace autocast

}  // namespace quern
