// What a Profiler has recorded, as text: the file and the table.
#pragma once
#include <string>
#include <vector>

#include "quern/nn/profiler.h"
#include "quern/tensor/events.h"

namespace quern::detail {

struct Trace {
  struct Step {
    int64_t number, begin, end;  // times as those of events
    int thread;                  // that called Profiler::step()
  };
  std::vector<Step> steps;
  std::vector<Event> events;  // inside of steps

  double seconds() const;  ///< of the steps
};

struct ProfileRow {
  std::string name;
  int64_t calls = 0;
  int64_t total = 0;  // nanoseconds
  double self = 0;    // nanoseconds
  int64_t flop = 0, bytes = 0;
  int64_t bf16_flop = 0;  // of flop
};
/// The longest self time first.
std::vector<ProfileRow> profile_rows(const Trace& trace, ProfileBy by);
std::string profile_table(const Trace& trace, ProfileBy by, const ProfilerPeaks& peaks);

/// Chrome's trace format, as Kineto writes it: complete events ("X"), counters ("C") and names
/// ("M"), by time, in microseconds from the first step's begin. Beside them "summary" has the rows
/// of each table.
std::string chrome_trace(const Trace& trace);

}  // namespace quern::detail
