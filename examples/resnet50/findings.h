// What holds a program back on this machine.
#pragma once
#include <string>
#include <vector>

#include "machine.h"
#include "quern/nn/profiler.h"

namespace resnet50 {

/// Something to do about it.
struct Finding {
  std::string what, cost, type;
};

/// Of a run on num_threads() threads, with the variables of this environment.
std::vector<Finding> examine(const Machine& machine, const quern::ProfilerPeaks& peaks);

/// Of a variable; "": unset, too.
std::string environment(const char* name);

}  // namespace resnet50
