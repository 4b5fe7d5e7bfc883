// log.csv of --output-dir: a line an interval, in the file as soon as it is known.
#pragma once
#include <cstdint>
#include <string>

#include "progress.h"
#include "quern/nn/file.h"

namespace resnet50 {

class RunLog {
 public:
  /// A new file, or one that goes on after the line of (epoch, step): what a run that was killed
  /// had written after that is taken out, as it will be written again. Errors: the system's.
  RunLog(const std::string& path, int64_t epoch, int64_t step);

  /// `step` counts from 1 in its epoch. A line that cannot be written (a full disk) is said once on
  /// standard error, and tried again with the next one.
  void add(int64_t epoch, int64_t step, double lr, const Tally& tally);
  /// To disk, so that no checkpoint outlasts a line that came before it.
  void sync();

 private:
  void flush();

  std::string path_, pending_;
  quern::File file_;
  int64_t bytes_ = 0;  // whole lines in the file
  bool complained_ = false;
};

}  // namespace resnet50
