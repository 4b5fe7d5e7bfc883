#include "profile.h"

#include <fmt/core.h>

#include "console.h"
#include "machine_peaks.h"

namespace resnet50 {

using namespace quern;

Profile::Profile(const Options& options, int64_t steps) : options_(options) {
  constexpr int64_t kWarmUp = 2;
  if (options.profile.empty()) return;
  profiler_.emplace(
      options.profile,
      ProfilerSchedule{
          .warmup = steps > kWarmUp ? kWarmUp : 0, .active = options.profile_steps, .repeat = 1},
      [] { return machine_peaks(); });
}

void Profile::end_step() {
  if (profiler_) profiler_->step();
}

void Profile::finish() {
  if (!profiler_) return;
  profiler_->stop();
  print(fmt::format("\n{}Trace in {}: opens in https://ui.perfetto.dev\n",
                    profiler_->table(profile_by(options_.profile_by)), options_.profile));
}

}  // namespace resnet50
