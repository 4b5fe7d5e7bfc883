#include "quern/nn/checkpoint.h"

#include <bit>

#include "quern/nn/safetensors_header.h"
#include "quern/tensor/random.h"

namespace quern::nn {
namespace {

constexpr std::string_view kForm = "1";

void check_form(const std::string& path, const Metadata& metadata) {
  const auto form = metadata.find(kCheckpointKey);
  check(form != metadata.end() && form->second == kForm, "load_checkpoint",
        "{}: expected a checkpoint of form {}, got {}", path, kForm,
        form == metadata.end() ? "a file that is none" : safetensors::quote(form->second));
}

}  // namespace

Metadata load_checkpoint_strings(const std::string& path) {
  Metadata strings = load_safetensors_metadata(path);
  check_form(path, strings);
  strings.erase(kCheckpointKey);
  return strings;
}

namespace detail {

CheckpointParts gather(const Module& model, TensorDict optimizer, Extras extras) {
  const Generator& generator = default_generator();
  return {model.state_dict(), std::move(optimizer), std::move(extras), generator.seed(),
          generator.stream()};
}

void write_checkpoint(const std::string& path, const CheckpointParts& parts) {
  Metadata strings = parts.extras.strings;
  check(strings.emplace(kCheckpointKey, kForm).second, "save_checkpoint",
        "strings: expected none named {}, got one", kCheckpointKey);
  TensorDict file;
  const auto add = [&](const char* prefix, const TensorDict& tensors) {
    for (const auto& [name, tensor] : tensors) file.insert(prefix + name, tensor);
  };
  add("model.", parts.model);
  add("optimizer.", parts.optimizer);
  add("extra.", parts.extras.tensors);
  file.insert("random", from_vector<int64_t>({std::bit_cast<int64_t>(parts.seed),
                                              std::bit_cast<int64_t>(parts.stream)}));
  save_safetensors(path, file, strings);
}

CheckpointParts read_checkpoint(const std::string& path) {
  CheckpointParts parts;
  parts.extras.strings = load_checkpoint_strings(path);
  const TensorDict file = load_safetensors(path);
  const Tensor* random = file.find("random");
  check(random != nullptr && random->dtype() == DType::i64 && random->shape() == Shape{2},
        "load_checkpoint", "{}: random: expected i64 [2], got {}", path,
        random == nullptr ? "none" : random->describe());
  parts.seed = std::bit_cast<uint64_t>(random->data<int64_t>()[0]);
  parts.stream = std::bit_cast<uint64_t>(random->data<int64_t>()[1]);

  const std::pair<std::string_view, TensorDict*> sections[] = {{"model.", &parts.model},
                                                               {"optimizer.", &parts.optimizer},
                                                               {"extra.", &parts.extras.tensors}};
  for (const auto& [name, tensor] : file)
    for (const auto& [prefix, dict] : sections)
      if (name.starts_with(prefix)) dict->insert(name.substr(prefix.size()), tensor);
  return parts;
}

TensorDict clone(const TensorDict& tensors) {
  TensorDict copies;
  for (const auto& [name, tensor] : tensors) copies.insert(name, raw::clone(tensor));
  return copies;
}

void restore_random(const CheckpointParts& parts) {
  default_generator() = Generator(parts.seed, parts.stream);
}

}  // namespace detail
}  // namespace quern::nn
