// Checkpoints: all that training needs to go on with the same bits, in one safetensors file.
//
//   nn::save_checkpoint("run.safetensors", model, optimizer, {{"step", ...}}, {{"classes", ...}});
//   const nn::Extras extras = nn::load_checkpoint("run.safetensors", model, optimizer);
//
// Tensors of the file: "model.<name>", "optimizer.<name>", "extra.<name>", and "random", the state
// of the default generator. load_weights() takes the model out of it.
#pragma once
#include "quern/nn/module.h"
#include "quern/nn/safetensors.h"
#include "quern/tensor/raw.h"

namespace quern::nn {

/// What a program keeps beside model and optimizer: averages, its position, names of classes.
struct Extras {
  TensorDict tensors;  ///< any names
  Metadata strings;    ///< any names but kCheckpointKey
};

/// The metadata that says that a safetensors file is a checkpoint, and of which form.
inline constexpr const char* kCheckpointKey = "quern.checkpoint";

/// A checkpoint's strings, read from its header alone.
/// Errors: those of load_safetensors_metadata(), which a file that was cut short gives;
/// a file that is no checkpoint.
Metadata load_checkpoint_strings(const std::string& path);

namespace detail {
struct CheckpointParts {
  TensorDict model, optimizer;
  Extras extras;
  uint64_t seed = 0, stream = 0;  // of the default generator
};
void write_checkpoint(const std::string& path, const CheckpointParts& parts);
CheckpointParts read_checkpoint(const std::string& path);
TensorDict clone(const TensorDict& tensors);
void restore_random(const CheckpointParts& parts);
CheckpointParts gather(const Module& model, TensorDict optimizer, Extras extras);
}  // namespace detail

/// Writes the state of a model, of its optimizer (any class of optim) and of the default generator,
/// and `extras`. The file is there whole or not at all, on the disk on return. Errors: those of
/// save_safetensors(); a string named kCheckpointKey.
template <class Optimizer>
void save_checkpoint(const std::string& path, const Module& model, const Optimizer& optimizer,
                     Extras extras = {}) {
  detail::write_checkpoint(path, detail::gather(model, optimizer.state_dict(), std::move(extras)));
}

/// Brings all three to where they were, and returns the extras. Errors, after which nothing has
/// changed: those of load_safetensors(); a file that is no checkpoint; a model or an optimizer that
/// it does not fit.
template <class Optimizer>
Extras load_checkpoint(const std::string& path, Module& model, Optimizer& optimizer) {
  detail::CheckpointParts parts = detail::read_checkpoint(path);
  const TensorDict state = model.state_dict(), before = detail::clone(state);
  model.load_state_dict(parts.model);
  try {
    optimizer.load_state_dict(parts.optimizer);
  } catch (...) {
    for (auto to = state.begin(), from = before.begin(); to != state.end(); ++to, ++from)
      raw::copy_(to->second, from->second);  // which takes no memory
    throw;
  }
  detail::restore_random(parts);
  return std::move(parts.extras);
}

}  // namespace quern::nn
