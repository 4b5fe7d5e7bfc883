// Weights of a network that was trained for other classes.
#pragma once
#include <string>
#include <vector>

#include "quern/nn/module.h"

namespace quern::nn {

/// Copies `weights` into the model as load_state_dict() does, but for its head: a module "fc",
/// "classifier" or "head", in which a tensor has another shape, keeps all that it has. Batch norms
/// may lack num_batches_tracked, as in files of torch before 0.4.1, and keep theirs. Returns a
/// line for each tensor of a head that was left out: "fc.weight (expected f32 [10,512], got f32
/// [1000,512])". Errors: those of load_state_dict(), after which nothing has changed.
std::vector<std::string> load_pretrained(Module& model, const TensorDict& weights);

}  // namespace quern::nn
