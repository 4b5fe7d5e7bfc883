// The exponential moving average of a model's weights, which often does better than the last ones:
//
//   a ← a + (1 - decay)·(x - a)
//
// Polyak, Juditsky, "Acceleration of stochastic approximation by averaging", 1992; as in timm's
// ModelEma and torch.optim.swa_utils, over a whole state_dict: what is not floating is copied.
#pragma once
#include "quern/tensor/tensor_dict.h"

namespace quern::optim {

/// The averages a of the tensors x of a state_dict().
class ModelEma {
 public:
  /// Starts from `state`. Error: a decay outside 0..1.
  ModelEma(const TensorDict& state, double decay);

  /// Takes `state` in, which has the tensors of the first. Same bits for any number of threads.
  void update(const TensorDict& state);
  /// In the order of the first state; those of bf16 are f32, lest small changes be rounded away.
  const TensorDict& averages() const { return averages_; }
  /// Copies averages() of another run. Error, after which nothing has changed: a missing tensor,
  /// one of another shape or dtype, or one too many.
  void load(const TensorDict& averages);

 private:
  TensorDict averages_;
  double decay_;
};

}  // namespace quern::optim
