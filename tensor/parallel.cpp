#include "quern/tensor/parallel.h"

#include <omp.h>

#include <algorithm>
#include <atomic>

#include "quern/tensor/check.h"
#include "quern/tensor/job.h"

namespace quern {

using namespace detail;

namespace {

std::atomic<int>& thread_count() {
  static std::atomic<int> count{omp_get_max_threads()};
  return count;
}

}  // namespace

int num_threads() { return thread_count(); }

void set_num_threads(int threads) {
  check(threads >= 1, "set_num_threads", "threads: expected at least 1, got {}", threads);
  thread_count() = threads;
}

int thread_index() { return std::max(this_thread.index, 0); }

bool runs_alone() { return this_thread.index >= 0 && this_thread.team == nullptr; }

void parallel_for(int64_t cells, FunctionRef<void(int64_t)> body) {
  parallel_for(cells, 1, [&](int64_t cell, int64_t, int64_t) { body(cell); });
}

void parallel_for(int64_t cells, int64_t pieces,
                  FunctionRef<void(int64_t, int64_t, int64_t)> body) {
  if (cells <= 0) return;
  if (Team* const team = this_thread.team) {
    Job job(cells, pieces, team->threads(), body);
    team->share(job);
    return job.rethrow();
  }
  if (runs_alone()) {  // nested: this thread already has its share, and its mode
    for (int64_t cell = 0; cell < cells; ++cell) body(cell, 0, pieces);
    return;
  }
  const int threads = num_threads();
  if (cells == 1 || threads == 1) {
    const Share share(0);
    const SharedSpan span;
    const int64_t start = span.on() ? SharedSpan::now() : 0;
    for (int64_t cell = 0; cell < cells; ++cell) body(cell, 0, pieces);
    if (span.on()) span.record(SpanKind::kernel, start, SharedSpan::now());
    return;
  }
  // All threads begin, cells or not: GCC's OpenMP ends those that a smaller team does without, and
  // the next op would make them again.
  Job job(cells, pieces, static_cast<int>(std::min<int64_t>(cells, threads)), body);
#pragma omp parallel num_threads(threads)
  job.run(omp_get_thread_num());
  job.rethrow();
}

}  // namespace quern
