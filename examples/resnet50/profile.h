// --profile: where the time of a run's steps goes.
#pragma once
#include <optional>

#include "options.h"
#include "quern/nn/profiler.h"

namespace resnet50 {

class Profile {
 public:
  /// Of a run of so many steps; of two or less also the first are looked at.
  Profile(const Options& options, int64_t steps);
  void end_step();
  /// Writes the file and prints the table.
  void finish();

 private:
  const Options& options_;
  std::optional<quern::Profiler> profiler_;
};

}  // namespace resnet50
