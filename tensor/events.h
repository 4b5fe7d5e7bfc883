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
  /// Of a kernel: which one, or the op below if that does not tell; of a part: which.
  std::string_view name = {};
  std::string_view op = {};  ///< whose cells or parts these are; of other kinds as `name`
  std::string_view kernel = {}, problem = {}, formats = {}, module = {};
  int64_t flop = 0, bytes = 0;
  int64_t memory = 0;  ///< bytes in use at the end; of ops and modules
};

/// From now on spans that begin are recorded. Error of `op`: they are already.
void start_recording(std::string_view op);
void stop_recording();
/// Events since start_recording() or the last time, in each thread's order of ends, but
/// waits after what ended them.
std::vector<Event> take_events();

int64_t nanoseconds_now();
/// The calling thread's Event::thread.
int thread_number();

}  // namespace quern::detail
