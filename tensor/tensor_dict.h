// TensorDict: named tensors in the order they were added, as a state_dict or a file holds them.
#pragma once
#include <initializer_list>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "quern/tensor/tensor.h"

namespace quern {

class TensorDict {
 public:
  using Entry = std::pair<std::string, Tensor>;

  TensorDict() = default;
  TensorDict(std::initializer_list<Entry> entries);

  /// Errors: a name that is taken; an undefined tensor.
  void insert(std::string name, Tensor tensor);

  /// Null if there is none of that name.
  const Tensor* find(std::string_view name) const;
  bool contains(std::string_view name) const { return find(name) != nullptr; }
  /// Error: there is none of that name.
  const Tensor& at(std::string_view name) const;

  size_t size() const { return entries_.size(); }
  bool empty() const { return entries_.empty(); }
  auto begin() const { return entries_.begin(); }
  auto end() const { return entries_.end(); }

 private:
  std::vector<Entry> entries_;
  std::unordered_map<std::string, size_t> index_;
};

}  // namespace quern
