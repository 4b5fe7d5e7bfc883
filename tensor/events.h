// What spans leave behind while someone records them: an event each, in a buffer of its thread's
// own, so that threads neither wait for each other nor for who reads.
#pragma once
#include <vector>

#include "quern/tensor/span.h"

namespace quern::detail {

/// A span that is over. Times are those of steady_clock, in nanoseconds. Strings stay for ever.
struct Event {
  SpanKind kind = SpanKind::op;
  int thread = 0;  ///< counted from 0, in the order in which they had a first event
  int64_t begin = 0, end = 0;
  std::string_view name = {};  ///< of a kernel: which one, or the op below if that does not tell
  std::string_view op = {};    ///< of a kernel: whose cells these are; else as `name`
  std::string_view kernel = {}, problem = {}, formats = {}, module = {};
  int64_t flop = 0, bytes = 0;
  int64_t memory = 0;  ///< bytes in use at the end; of a kernel: not looked at
};

/// From now on spans that begin are recorded. Error of `op`: they are already.
void start_recording(std::string_view op);
void stop_recording();
/// Events since start_recording() or the last time, in each thread's order of ends.
std::vector<Event> take_events();

int64_t nanoseconds_now();
/// The calling thread's Event::thread.
int thread_number();

}  // namespace quern::detail
