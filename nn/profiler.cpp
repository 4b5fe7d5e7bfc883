#include "quern/nn/profiler.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <exception>

#include "quern/nn/file_replacement.h"
#include "quern/nn/profiler_trace.h"
#include "quern/tensor/check.h"

namespace quern {

using namespace detail;

namespace {

constexpr std::string_view kOp = "profiler";

enum class Phase { idle, warmup, active };

Phase phase_of(const ProfilerSchedule& s, int64_t step) {
  const int64_t cycle = s.wait + s.warmup + s.active, at = step - s.skip_first;
  if (at < 0 || (s.repeat > 0 && at / cycle >= s.repeat)) return Phase::idle;
  const int64_t in_cycle = at % cycle;
  return in_cycle < s.wait              ? Phase::idle
         : in_cycle < s.wait + s.warmup ? Phase::warmup
                                        : Phase::active;
}

std::atomic<bool> one_has_started = false;

}  // namespace

struct Profiler::State {
  const std::string path;
  const ProfilerSchedule schedule;
  const std::function<ProfilerPeaks()> ask_peaks;
  bool started = false;
  int64_t number = 0;  // of the step
  Phase phase = Phase::idle;
  int64_t begin = 0;
  Trace trace;
  ProfilerPeaks peaks;

  void begin_step() {
    const Phase before = phase;
    phase = phase_of(schedule, number);
    if (phase != Phase::idle && before == Phase::idle) start_recording(kOp);
    begin = nanoseconds_now();
  }
  /// `last`: no other comes after it.
  void end_step(bool last) {
    const int64_t end = nanoseconds_now();
    const Phase next = last ? Phase::idle : phase_of(schedule, number + 1);
    if (phase != Phase::idle) {
      if (next == Phase::idle) stop_recording();
      const std::vector<Event> events = take_events();
      if (phase == Phase::active && !(last && events.empty())) {
        trace.steps.push_back({number, begin, end, thread_number()});
        for (Event event : events) {  // other threads' may go on over the end of a step
          event.begin = std::max(event.begin, begin), event.end = std::min(event.end, end);
          if (event.begin <= event.end) trace.events.push_back(event);
        }
      }
    }
    if (next == Phase::idle) phase = Phase::idle;
    ++number;
  }
};

Profiler::Profiler(std::string path, const ProfilerSchedule& schedule,
                   std::function<ProfilerPeaks()> peaks)
    : state_(new State{.path = std::move(path),
                       .schedule = schedule,
                       .ask_peaks = std::move(peaks),
                       .trace = {},
                       .peaks = {}}) {
  const auto in_range = [](int64_t steps) { return steps >= 0 && steps <= int64_t{1} << 60; };
  check(in_range(schedule.wait) && in_range(schedule.warmup) && in_range(schedule.active) &&
            in_range(schedule.repeat) && in_range(schedule.skip_first) && schedule.active > 0,
        kOp, "schedule: expected at least 0 steps, and 1 that is active, got {}, {}, {}, {}, {}",
        schedule.wait, schedule.warmup, schedule.active, schedule.repeat, schedule.skip_first);
  if (!state_->path.empty()) {
    const std::string reason = why_not_replaceable(state_->path);
    check(reason.empty(), kOp, "path: expected a writable file, got {}: {}", state_->path, reason);
  }
  start();
}

Profiler::~Profiler() {
  try {
    stop();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
  }
}

void Profiler::start() {
  check(!state_->started, kOp, "start: expected a profiler that has stopped, got one at work");
  check(!one_has_started.exchange(true), kOp,
        "start: expected no other profiler at work, got a second one");
  state_->started = true;
  state_->begin_step();
}

void Profiler::step() {
  check(state_->started, kOp, "step: expected a profiler that has started, got one that has not");
  state_->end_step(false);
  state_->begin_step();
}

void Profiler::stop() {
  if (!state_->started) return;
  state_->end_step(true);
  state_->started = false;
  one_has_started = false;
  if (state_->ask_peaks) state_->peaks = state_->ask_peaks();
  if (state_->path.empty()) return;
  const std::string text = chrome_trace(state_->trace, state_->peaks);
  FileReplacement file(kOp, state_->path);
  file.write(text.data(), static_cast<int64_t>(text.size()));
  file.commit();
}

std::string Profiler::table(ProfileBy by) const {
  return profile_table(state_->trace, by, state_->peaks);
}

ProfileBy profile_by(std::string_view name) {
  if (name == "op") return ProfileBy::op;
  if (name == "module") return ProfileBy::module;
  if (name == "shape") return ProfileBy::shape;
  check(name == "kernel", kOp, "by: expected op, module, shape or kernel, got \"{}\"", name);
  return ProfileBy::kernel;
}

}  // namespace quern
