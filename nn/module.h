// Module: a tree of named parameters, buffers and modules, in the spirit of torch.nn.Module.
//
//   struct Net : nn::Module {
//     nn::Conv2d& conv = register_module("conv", nn::Conv2d(3, 16, 3, {.padding = 1}));
//     nn::Linear& head = register_module("head", nn::Linear(16, 10));
//
//     Tensor forward(const Tensor& x) override {
//       return head(flatten(adaptive_avg_pool2d(relu(conv(x)), 1), 1));
//     }
//   };
//
// A module owns its children, which stay where they are when it moves, so that the references above
// hold. It can be moved but not copied: two modules that share weights unseen help nobody.
#pragma once
#include <concepts>
#include <memory>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#include "quern/tensor/span.h"
#include "quern/tensor/tensor.h"
#include "quern/tensor/tensor_dict.h"

/// Layers, networks, and files of weights: torch.nn's and torchvision's names.
namespace quern::nn {

class Module {
 public:
  Module() = default;
  virtual ~Module() = default;
  Module(Module&&) = default;
  Module& operator=(Module&&) = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  /// What the module computes, as its class tells. Module's own is an error: one may have another
  /// call signature.
  virtual Tensor forward(const Tensor& x);
  /// forward(), as a span that profilers see.
  Tensor operator()(const Tensor& x) {
    const Span span = Span::of_module(name_, typeid(*this).name());
    return forward(x);
  }

  /// Switches batch_norm and dropout, here and below, between training and inference.
  void train(bool on = true);
  void eval() { train(false); }
  bool is_training() const { return training_; }  ///< true at first
  /// Is this module in training mode, or any below it?
  bool any_training() const;

  /// By which its parent has registered it; "": it has none.
  const std::string& name() const { return name_; }
  /// This module, named "", and all below it, each once: parents first, in order of registration.
  std::vector<std::pair<std::string, Module*>> named_modules();
  /// Dotted names, in the order of named_modules(); a tensor that is shared appears once.
  TensorDict named_parameters() const;
  TensorDict named_buffers() const;  ///< likewise
  /// Bytes of the parameters; a tensor that is shared counts wherever it is registered.
  int64_t parameter_bytes() const;
  Tensors parameters() const;  ///< the tensors of named_parameters(), for an optimizer

  /// Drops the gradients, so that the next backward() starts from none.
  void zero_grad();
  /// Freezes (false) or unfreezes every parameter.
  void requires_grad_(bool value = true);

  /// Parameters and buffers without history, sharing the module's storage; in PyTorch's order.
  TensorDict state_dict() const;
  /// Names that a dictionary does not have, or has and the module has not.
  struct LoadResult {
    std::vector<std::string> missing, unexpected;  ///< in the order of their side
  };
  /// Copies `dict` into the module, converting dtypes within floating and within integer ones.
  /// Everything is checked first. Error, after which nothing has changed: a tensor of another shape
  /// or kind; if `strict` also a missing or an unexpected name. The message lists all of them.
  LoadResult load_state_dict(const TensorDict& dict, bool strict = true);

 protected:
  /// @name Registration
  /// Each returns what it has registered. Errors: an empty or a taken name, or one with a dot.
  /// @{

  /// Marks `tensor` for differentiation. An undefined one (no bias) is returned and not registered.
  Tensor register_parameter(std::string name, Tensor tensor);
  /// State that is saved but not trained.
  Tensor register_buffer(std::string name, Tensor tensor);
  /// A module below this one, which is moved in or shared.
  template <std::derived_from<Module> M>
  M& register_module(std::string name, M&& module) {
    return register_module(std::move(name), std::make_shared<M>(std::move(module)));
  }
  template <std::derived_from<Module> M>
  M& register_module(std::string name, std::shared_ptr<M> module) {
    M* registered = module.get();
    adopt(std::move(name), std::move(module));
    return *registered;
  }
  /// @}

 private:
  template <class T>
  using Named = std::vector<std::pair<std::string, T>>;

  void adopt(std::string name, std::shared_ptr<Module> module);
  void check_name(std::string_view op, const std::string& name) const;
  void collect_state(const std::string& prefix, TensorDict& dict) const;
  void collect_modules(const std::string& prefix, Named<const Module*>& modules) const;
  TensorDict collect_tensors(Named<Tensor> Module::*kind) const;

  std::string name_;  // by which it was registered
  Named<Tensor> parameters_, buffers_;
  Named<std::shared_ptr<Module>> modules_;
  bool training_ = true;
};

}  // namespace quern::nn
