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
  using Entry = std::pair<std::string, Tensor>;  ///< a name, and what has it

  TensorDict() = default;
  /// insert() of each, with its errors.
  TensorDict(std::initializer_list<Entry> entries);

  /// Errors: a name that is taken; an undefined tensor.
  void insert(std::string name, Tensor tensor);

  /// Null if there is none of that name.
  const Tensor* find(std::string_view name) const;
  /// Is there one of that name?
  bool contains(std::string_view name) const { return find(name) != nullptr; }
  /// Error: there is none of that name.
  const Tensor& at(std::string_view name) const;

  size_t size() const { return entries_.size(); }  ///< how many tensors
  bool empty() const { return entries_.empty(); }  ///< none at all?
  auto begin() const { return entries_.begin(); }  ///< of the entries, in the order of insertion
  auto end() const { return entries_.end(); }      ///< beyond the last entry

 private:
  std::vector<Entry> entries_;
  std::unordered_map<std::string, size_t> index_;
};

}  // namespace quern
