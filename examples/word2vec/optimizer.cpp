#include "optimizer.h"

#include "quern/optim/optim.h"

namespace word2vec {
namespace {

using namespace quern::optim;

template <class Algorithm, class Options>
std::unique_ptr<Optimizer> make(const quern::Tensors& params, double lr) {
  Options options;
  options.lr = lr;
  return std::make_unique<Algorithm>(params, options);
}

std::unique_ptr<Optimizer> make_momentum(const quern::Tensors& params, double lr) {
  return std::make_unique<SGD>(params, SGDOptions{.lr = lr, .momentum = 0.9});
}

}  // namespace

const std::vector<NamedOptimizer>& optimizers() {
  static const std::vector<NamedOptimizer> all = {
      {"sgd", 0.025, 0, make<SGD, SGDOptions>},
      {"momentum", 0.0025, 1, make_momentum},
      {"adam", 0.004, 2, make<Adam, AdamOptions>},
      {"adamw", 0.004, 2, make<AdamW, AdamWOptions>},
      {"adamax", 0.008, 2, make<Adamax, AdamaxOptions>},
      {"nadam", 0.004, 2, make<NAdam, NAdamOptions>},
      {"radam", 0.004, 2, make<RAdam, RAdamOptions>},
      {"lamb", 0.01, 2, make<LAMB, LAMBOptions>},
      {"adagrad", 0.1, 1, make<Adagrad, AdagradOptions>},
      {"adadelta", 5, 2, make<Adadelta, AdadeltaOptions>},
      {"rmsprop", 0.004, 1, make<RMSprop, RMSpropOptions>},
      {"asgd", 0.025, 1, make<ASGD, ASGDOptions>},
      {"rprop", 0.001, 2, make<Rprop, RpropOptions>},
  };
  return all;
}

const NamedOptimizer& find_optimizer(const std::string& name) {
  for (const NamedOptimizer& optimizer : optimizers())
    if (name == optimizer.name) return optimizer;
  quern::fail("word2vec", fmt::format("--optimizer: expected one of --help, got {}", name));
}

}  // namespace word2vec
