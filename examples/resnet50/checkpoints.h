// The checkpoints of --output-dir: checkpoint-<step>.safetensors, the newest few of them, and
// best.safetensors.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "options.h"
#include "progress.h"
#include "quern/nn/module.h"
#include "quern/optim/ema.h"
#include "quern/optim/optimizer.h"

namespace resnet50 {

/// What a checkpoint holds; `ema` may be null.
struct Run {
  quern::nn::Module& model;
  quern::optim::Optimizer& optimizer;
  quern::optim::ModelEma* ema;
  Progress& progress;
};

class Checkpoints {
 public:
  /// Makes --output-dir. Errors: it cannot be made or written to; it holds checkpoints, and
  /// --resume is not given; --resume FILE, and it holds newer ones. `classes`: names, in order.
  Checkpoints(const Options& options, std::vector<std::string> classes);

  /// Brings `run` to where the checkpoint of --resume was, and says which. With "auto" that is the
  /// newest whole one of --output-dir: torn and foreign ones are named and passed over, and if
  /// there is none, nothing changes. Errors: FILE is torn or foreign; a run of another network,
  /// number of classes, optimizer or average.
  void resume(const Run& run) const;

  /// Writes a checkpoint, the new best one too if `is_best`, and removes the oldest ones. False if
  /// that failed, which is said on standard error; older files are as they were.
  bool save(const Run& run, bool is_best) const;

 private:
  std::string path(int64_t step) const;
  /// Those of --output-dir, the newest first.
  std::vector<std::pair<int64_t, std::string>> all() const;
  void load(const std::string& path, const Run& run) const;

  const Options& options_;
  const std::string folder_;
  const std::vector<std::string> classes_;
};

}  // namespace resnet50
