// The optimizers by name.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "quern/optim/optimizer.h"

namespace word2vec {

struct NamedOptimizer {
  const char* name;
  double lr;   // where none is given
  int states;  // tensors that it keeps of a parameter
  std::unique_ptr<quern::optim::Optimizer> (*make)(const quern::Tensors& params, double lr);
};

const std::vector<NamedOptimizer>& optimizers();
/// Error: no such name.
const NamedOptimizer& find_optimizer(const std::string& name);

}  // namespace word2vec
