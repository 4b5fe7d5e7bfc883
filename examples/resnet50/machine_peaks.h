// What this machine can do at most, measured once.
#pragma once
#include <functional>

#include "quern/nn/profiler.h"

namespace resnet50 {

/// On num_threads() threads, but no more than the affinity has CPUs. Measured in some two seconds,
/// and kept in the user's folder of caches ($XDG_CACHE_HOME or ~/.cache, quern/peaks.json), for
/// each number of threads, as long as CPU, cores granted and this program stay what they are; where
/// nothing can be kept there, measured each time. `again`: measured in any case; of what is kept
/// and what is measured, the faster one counts, since other programs may have disturbed either.
quern::ProfilerPeaks machine_peaks(bool again = false);

/// The same with another way to measure: peaks of num_threads() threads, as many as there are CPUs
/// at most.
quern::ProfilerPeaks machine_peaks(bool again,
                                   const std::function<quern::ProfilerPeaks()>& measure);

}  // namespace resnet50
