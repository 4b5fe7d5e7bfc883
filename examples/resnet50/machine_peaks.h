// What this machine can do at most, measured once.
#pragma once
#include "quern/nn/profiler.h"

namespace resnet50 {

/// On num_threads() threads, but no more than the affinity has CPUs. Measured in about a second, and kept in the user's folder of caches
/// ($XDG_CACHE_HOME or ~/.cache, quern/peaks.json) as long as CPU, cores granted, threads and
/// compiler stay; where nothing can be kept there, measured each time.
quern::ProfilerPeaks machine_peaks();

}  // namespace resnet50
