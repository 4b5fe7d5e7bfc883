#include "quern/nn/module.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "quern/tensor/raw.h"

namespace quern::nn {

Tensor Module::forward(const Tensor&) {
  fail("module", "forward: expected an override that takes one tensor, got none");
}

void Module::train(bool on) {
  training_ = on;
  for (auto& [name, module] : modules_) module->train(on);
}

bool Module::any_training() const {
  return training_ || std::ranges::any_of(
                          modules_, [](const auto& entry) { return entry.second->any_training(); });
}

// ---- registration ----

void Module::check_name(std::string_view op, const std::string& name) const {
  check(!name.empty() && name.find('.') == std::string::npos, op,
        "name: expected one that is not empty and has no dot, got \"{}\"", name);
  auto is_taken = [&](const auto& entry) { return entry.first == name; };
  check(std::ranges::none_of(parameters_, is_taken) && std::ranges::none_of(buffers_, is_taken) &&
            std::ranges::none_of(modules_, is_taken),
        op, "name: expected a new one, got \"{}\" again", name);
}

Tensor Module::register_parameter(std::string name, Tensor tensor) {
  check_name("register_parameter", name);
  if (!tensor.defined()) return tensor;
  tensor.requires_grad_();
  parameters_.emplace_back(std::move(name), tensor);
  return tensor;
}

Tensor Module::register_buffer(std::string name, Tensor tensor) {
  check_name("register_buffer", name);
  if (!tensor.defined()) return tensor;
  buffers_.emplace_back(std::move(name), tensor);
  return tensor;
}

void Module::adopt(std::string name, std::shared_ptr<Module> module) {
  check_name("register_module", name);
  check(module != nullptr, "register_module", "{}: expected a module, got null", name);
  module->name_ = name;
  modules_.emplace_back(std::move(name), std::move(module));
}

// ---- traversal ----

void Module::collect_modules(const std::string& prefix, Named<const Module*>& modules) const {
  if (std::ranges::find(modules, this, [](auto& entry) { return entry.second; }) != modules.end())
    return;
  modules.emplace_back(prefix, this);
  for (const auto& [name, module] : modules_)
    module->collect_modules(prefix.empty() ? name : prefix + '.' + name, modules);
}

std::vector<std::pair<std::string, Module*>> Module::named_modules() {
  Named<const Module*> seen;
  collect_modules("", seen);
  Named<Module*> modules;
  for (auto& [name, module] : seen) modules.emplace_back(name, const_cast<Module*>(module));
  return modules;
}

TensorDict Module::collect_tensors(Named<Tensor> Module::*kind) const {
  Named<const Module*> modules;
  collect_modules("", modules);
  TensorDict dict;
  for (const auto& [prefix, module] : modules)
    for (const auto& [name, tensor] : module->*kind) {
      const auto is_it = [&t = tensor](const auto& entry) { return entry.second.is_same(t); };
      if (std::ranges::none_of(dict, is_it))
        dict.insert(prefix.empty() ? name : prefix + '.' + name, tensor);
    }
  return dict;
}

TensorDict Module::named_parameters() const { return collect_tensors(&Module::parameters_); }
TensorDict Module::named_buffers() const { return collect_tensors(&Module::buffers_); }

int64_t Module::parameter_bytes() const {
  int64_t bytes = 0;
  for (const auto& [name, parameter] : parameters_)
    if (parameter.defined()) bytes += parameter.nbytes();
  for (const auto& [name, module] : modules_) bytes += module->parameter_bytes();
  return bytes;
}

Tensors Module::parameters() const {
  Tensors tensors;
  for (const auto& [name, parameter] : named_parameters()) tensors.push_back(parameter);
  return tensors;
}

void Module::zero_grad() {
  for (auto& [name, parameter] : parameters_) parameter.set_grad({});
  for (auto& [name, module] : modules_) module->zero_grad();
}

void Module::requires_grad_(bool value) {
  for (auto& [name, parameter] : parameters_) parameter.requires_grad_(value);
  for (auto& [name, module] : modules_) module->requires_grad_(value);
}

// ---- state ----

void Module::collect_state(const std::string& prefix, TensorDict& dict) const {
  for (const auto& [name, parameter] : parameters_)
    dict.insert(prefix + name, raw::alias(parameter));
  for (const auto& [name, buffer] : buffers_) dict.insert(prefix + name, raw::alias(buffer));
  for (const auto& [name, module] : modules_) module->collect_state(prefix + name + '.', dict);
}

TensorDict Module::state_dict() const {
  TensorDict dict;
  collect_state("", dict);
  return dict;
}

Module::LoadResult Module::load_state_dict(const TensorDict& dict, bool strict) {
  TensorDict state = state_dict();
  LoadResult result;
  std::vector<std::string> mismatched;
  for (const auto& [name, tensor] : state) {
    const Tensor* source = dict.find(name);
    if (source == nullptr) {
      result.missing.push_back(name);
    } else if (source->shape() != tensor.shape() ||
               is_floating(source->dtype()) != is_floating(tensor.dtype())) {
      mismatched.push_back(fmt::format("{} (expected {} {}, got {} {})", name, tensor.dtype(),
                                       tensor.shape(), source->dtype(), source->shape()));
    }
  }
  for (const auto& [name, tensor] : dict)
    if (!state.contains(name)) result.unexpected.push_back(name);

  std::string complaints;
  auto complain = [&](std::string_view what, const std::vector<std::string>& names) {
    if (names.empty()) return;
    if (!complaints.empty()) complaints += "; ";
    complaints += fmt::format("{}: {}", what, fmt::join(names, ", "));
  };
  if (strict) complain("missing", result.missing);
  if (strict) complain("unexpected", result.unexpected);
  complain("mismatched", mismatched);
  check(complaints.empty(), "load_state_dict",
        "dict: expected the {} tensors of the module, got {}", state.size(), complaints);

  // A source that lies in the module's own memory is copied before that changes. From there on
  // nothing fails.
  std::unordered_set<const Storage*> own;
  for (const auto& [name, tensor] : state) own.insert(tensor.storage().get());
  std::vector<std::pair<Tensor, Tensor>> copies;
  for (const auto& [name, tensor] : state)
    if (const Tensor* source = dict.find(name))
      copies.emplace_back(tensor,
                          own.contains(source->storage().get()) ? raw::clone(*source) : *source);
  for (const auto& [tensor, source] : copies) raw::copy_(tensor, source);
  return result;
}

}  // namespace quern::nn
