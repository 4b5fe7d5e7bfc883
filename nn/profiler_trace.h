// What a Profiler has recorded, as text: the file and the table.
#pragma once
#include <map>
#include <string>
#include <string_view>
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
  int64_t bf16_flop = 0;                          // of flop
  std::map<std::string_view, double> least = {};  // nanoseconds of its calls by what bounds them

  double least_time() const;
  std::string_view bound() const;  ///< what bounds most of it; "": not known
  double share_of_bound() const { return least_time() / self; }
};
/// The longest self time first. Their strings are the trace's and the peaks'.
std::vector<ProfileRow> profile_rows(const Trace& trace, ProfileBy by,
                                     const ProfilerPeaks& peaks = {});
std::string profile_table(const Trace& trace, ProfileBy by, const ProfilerPeaks& peaks);

/// Chrome's trace format, as Kineto writes it: complete events ("X"), counters ("C") and names
/// ("M"), by time, in microseconds from the first step's begin. Beside them there is "summary":
///   steps, step_us   how many, and their time
///   peaks            ProfilerPeaks::json(), null if they are not known: threads, f32_gflops,
///                    bf16_gflops, arithmetic [{isa, dtype, gflops}], and, nearest first,
///                    memory [{level, bytes, gbytes_per_second}]
///   op, module, shape, kernel
///                    the rows of that table, each {name, calls, total_us, self_us, flop,
///                    bf16_flop, bytes, bound, least_us, share_of_bound}. bound: "arithmetic", a
///                    level of memory, or null; least_us: what the calls take at least;
///                    share_of_bound = least_us / self_us, null where nothing bounds
/// and an event's args have the flop, bytes and kernel that these are sums over.
std::string chrome_trace(const Trace& trace, const ProfilerPeaks& peaks);

}  // namespace quern::detail
