// The clock that everything here is timed with.
#pragma once
#include <ctime>

#include "quern/tensor/parallel.h"

namespace quern::bench {

inline double seconds_on(clockid_t clock) {
  timespec t{};
  clock_gettime(clock, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

/// On one thread the seconds that the CPU spent on this program, which other programs do not
/// lengthen; on several those on the wall, since threads wait for each other.
inline double now() {
  return seconds_on(num_threads() == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC);
}

/// Seconds that f() takes.
template <class F>
double seconds_of(F f) {
  const double begin = now();
  f();
  return now() - begin;
}

}  // namespace quern::bench
