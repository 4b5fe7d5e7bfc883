#include "quern/nn/pretrained.h"

#include <algorithm>
#include <unordered_set>

namespace quern::nn {
namespace {

/// "classifier.1" of "classifier.1.weight"; "" of a tensor that belongs to no head.
std::string head_of(const std::string& name) {
  for (const std::string_view head : {"fc.", "classifier.", "head."})
    if (name.starts_with(head)) return name.substr(0, name.rfind('.'));
  return "";
}

}  // namespace

std::vector<std::string> load_pretrained(Module& model, const TensorDict& weights) {
  const TensorDict state = model.state_dict();
  std::vector<std::string> left_out;
  std::unordered_set<std::string> heads;
  for (const auto& [name, tensor] : weights) {
    const Tensor* own = state.find(name);
    if (own == nullptr || own->shape() == tensor.shape() || head_of(name).empty()) continue;
    heads.insert(head_of(name));
    left_out.push_back(
        fmt::format("{} (expected {}, got {})", name, own->describe(), tensor.describe()));
  }
  const auto is_kept = [&](const std::string& name) { return heads.contains(head_of(name)); };
  TensorDict dict;
  for (const auto& [name, tensor] : weights)
    if (!is_kept(name) || !state.contains(name)) dict.insert(name, tensor);
  for (const auto& [name, own] : state)
    if (!dict.contains(name) && (is_kept(name) || name.ends_with("num_batches_tracked")))
      dict.insert(name, own);
  model.load_state_dict(dict);
  return left_out;
}

}  // namespace quern::nn
