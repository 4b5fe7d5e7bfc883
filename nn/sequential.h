// Sequential: modules one after the other, torch.nn.Sequential.
//
//   nn::Sequential net(nn::Linear(784, 128), nn::ReLU(), nn::Linear(128, 10));
#pragma once
#include "quern/nn/module.h"

namespace quern::nn {

/// Its modules are named "0", "1", ... in order.
class Sequential : public Module {
 public:
  Sequential() = default;
  /// add() of each.
  template <std::derived_from<Module>... M>
  explicit Sequential(M... modules) {
    (add(std::move(modules)), ...);
  }

  /// Appends a module.
  template <std::derived_from<Module> M>
  M& add(M&& module) {
    return add(std::make_shared<M>(std::move(module)));
  }
  template <std::derived_from<Module> M>
  M& add(std::shared_ptr<M> module) {
    M& added = register_module(std::to_string(size()), std::move(module));
    modules_.push_back(&added);
    return added;
  }

  Tensor forward(const Tensor& x) override;

  size_t size() const { return modules_.size(); }  ///< how many modules
  /// Error: there is none of that index.
  Module& operator[](size_t i);

 private:
  std::vector<Module*> modules_;  // owned by the base
};

}  // namespace quern::nn
