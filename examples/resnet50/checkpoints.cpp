#include "checkpoints.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "console.h"
#include "quern/nn/checkpoint.h"
#include "quern/nn/file_replacement.h"

namespace resnet50 {

using namespace quern;
namespace fs = std::filesystem;

namespace {

constexpr std::string_view kPrefix = "checkpoint-", kSuffix = ".safetensors";

/// The step of "checkpoint-<step>.safetensors"; nothing for another name.
std::optional<int64_t> step_of(const std::string& name) {
  if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) return {};
  const char* begin = name.data() + kPrefix.size();
  const char* end = name.data() + name.size() - kSuffix.size();
  int64_t step = 0;
  const auto parsed = std::from_chars(begin, end, step);
  if (parsed.ec != std::errc() || parsed.ptr != end || step < 0) return {};
  return step;
}

/// What a checkpoint must agree in with the run that goes on from it, and what is better the same.
nlohmann::json needed(const Options& o) {
  return {{"--arch", o.arch},
          {"--num-classes", o.num_classes},
          {"--opt", o.opt},
          {"--momentum", o.momentum != 0},
          {"--norm-weight-decay", o.norm_weight_decay.has_value()},
          {"--model-ema", o.model_ema}};
}
nlohmann::json remembered(const Options& o) {
  return {{"--batch-size", o.batch_size.value_or(16)},
          {"--image-size", o.image_size.value_or(224)},
          {"--steps", o.steps},
          {"--epochs", o.epochs},
          {"--accum-steps", o.accum_steps},
          {"--lr", o.lr},
          {"--lr-scheduler", o.lr_scheduler},
          {"--weight-decay", o.weight_decay},
          {"--label-smoothing", o.label_smoothing},
          {"--seed", o.seed},
          {"--amp", o.amp}};
}

/// The same file under a second name, so that nothing is written twice; false where the file system
/// has no such names.
bool link_as(const std::string& file, const std::string& name) {
  const std::string link = name + ".tmp";
  ::unlink(link.c_str());
  return ::link(file.c_str(), link.c_str()) == 0 && std::rename(link.c_str(), name.c_str()) == 0;
}

/// The options in which the two differ: "--arch resnet18".
std::string differences(const nlohmann::json& saved, const nlohmann::json& now) {
  std::string text;
  for (const auto& [name, value] : now.items())
    if (!saved.contains(name) || saved.at(name) != value)
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name,
                          saved.contains(name) ? saved.at(name).dump() : "unset");
  return text;
}

}  // namespace

Checkpoints::Checkpoints(const Options& options, std::vector<std::string> classes)
    : options_(options), folder_(options.output_dir), classes_(std::move(classes)) {
  const auto there = all();
  check(there.empty() || !options.resume.empty(), "train",
        "--output-dir: expected a folder without checkpoints, or --resume auto, got {}", folder_);
  if (options.resume.empty() || options.resume == "auto" || there.empty()) return;
  std::error_code error;
  check(fs::equivalent(there.front().second, options.resume, error), "train",
        "--resume: expected the newest checkpoint of --output-dir, or another --output-dir, got {} "
        "beside {}",
        options.resume, there.front().second);
}

std::string Checkpoints::path(int64_t step) const {
  return fmt::format("{}/{}{:08}{}", folder_, kPrefix, step, kSuffix);
}

std::vector<std::pair<int64_t, std::string>> Checkpoints::all() const {
  std::vector<std::pair<int64_t, std::string>> found;
  std::error_code error;
  for (fs::directory_iterator at(folder_, error), end; !error && at != end; at.increment(error))
    if (const auto step = step_of(at->path().filename().string()))
      found.emplace_back(*step, at->path().string());
  std::ranges::sort(found, std::greater());
  return found;
}

void Checkpoints::resume(const Run& run) const {
  if (options_.resume.empty()) return;
  if (options_.resume != "auto") return load(options_.resume, run);
  std::vector<std::string> paths;
  for (const auto& [step, path] : all()) paths.push_back(path);
  if (const std::string best = folder_ + "/best.safetensors"; fs::exists(best))
    paths.push_back(best);
  for (const std::string& path : paths) {
    try {
      nn::load_checkpoint_strings(path);
    } catch (const Error& error) {
      print_error(fmt::format("warning: --resume: {} is passed over: {}", path, error.what()));
      continue;
    }
    return load(path, run);
  }
  print(fmt::format("resume: no checkpoint in {}: starting anew\n", folder_));
}

void Checkpoints::load(const std::string& path, const Run& run) const {
  const Metadata strings = nn::load_checkpoint_strings(path);
  const auto text = strings.find("options");
  const auto saved =
      nlohmann::json::parse(text == strings.end() ? "" : text->second, nullptr, false);
  check(saved.is_object() && saved.contains("needed") && saved.contains("remembered"), "resume",
        "{}: expected a checkpoint of resnet50 train, got another", path);
  const std::string unfit = differences(saved.at("needed"), needed(options_));
  check(unfit.empty(), "resume", "{}: expected a run with the same options, got one with {}", path,
        unfit);
  if (const std::string other = differences(saved.at("remembered"), remembered(options_));
      !other.empty())
    print_error(fmt::format("warning: --resume: {} was written with {}", path, other));

  const nn::Extras extras = nn::load_checkpoint(path, run.model, run.optimizer);
  TensorDict averages, progress;
  for (const auto& [name, tensor] : extras.tensors) {
    const std::string_view prefix = "ema.";
    if (name.starts_with(prefix)) averages.insert(name.substr(prefix.size()), tensor);
    else progress.insert(name, tensor);
  }
  if (run.ema != nullptr) run.ema->load(averages);
  run.progress = Progress::from_tensors(progress);
  print(
      fmt::format("resume: {}: step {} of {}\n", path, run.progress.step, options_.total_steps()));
}

bool Checkpoints::save(const Run& run, bool is_best) const {
  nn::Extras extras{run.progress.to_tensors(), {}};
  if (run.ema != nullptr)
    for (const auto& [name, tensor] : run.ema->averages())
      extras.tensors.insert("ema." + name, tensor);
  extras.strings["options"] =
      nlohmann::json{{"needed", needed(options_)}, {"remembered", remembered(options_)}}.dump();
  if (!classes_.empty()) extras.strings["classes"] = nlohmann::json(classes_).dump();
  const std::string file = path(run.progress.step), best = folder_ + "/best.safetensors";
  try {
    // The best one first: without it the epoch would end anew, and find the same.
    if (is_best) nn::save_checkpoint(best, run.model, run.optimizer, extras);
    if (!is_best || !link_as(best, file))
      nn::save_checkpoint(file, run.model, run.optimizer, extras);
  } catch (const Error& error) {
    print_error(fmt::format("warning: a checkpoint was not written: {}", error.what()));
    return false;
  }
  auto files = all();  // those of later steps are torn or foreign: nobody's to remove, or to count
  std::erase_if(files, [&](const auto& entry) { return entry.first > run.progress.step; });
  for (size_t i = static_cast<size_t>(options_.keep); i < files.size(); ++i)
    ::unlink(files[i].second.c_str());
  return true;
}

}  // namespace resnet50
