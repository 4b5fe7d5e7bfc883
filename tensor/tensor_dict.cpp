#include "quern/tensor/tensor_dict.h"

namespace quern {

TensorDict::TensorDict(std::initializer_list<Entry> entries) {
  for (const auto& [name, tensor] : entries) insert(name, tensor);
}

void TensorDict::insert(std::string name, Tensor tensor) {
  check(tensor.defined(), "tensor_dict", "{}: expected a tensor, got an undefined one", name);
  check(!contains(name), "tensor_dict", "name: expected a new one, got \"{}\" again", name);
  entries_.emplace_back(std::move(name), std::move(tensor));
  try {
    index_.emplace(entries_.back().first, entries_.size() - 1);
  } catch (...) {
    entries_.pop_back();
    throw;
  }
}

const Tensor* TensorDict::find(std::string_view name) const {
  auto found = index_.find(std::string(name));
  return found == index_.end() ? nullptr : &entries_[found->second].second;
}

const Tensor& TensorDict::at(std::string_view name) const {
  const Tensor* found = find(name);
  check(found != nullptr, "tensor_dict", "name: expected one of {} tensors, got \"{}\"", size(),
        name);
  return *found;
}

}  // namespace quern
