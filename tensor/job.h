// A parallel_for on its way: what parallel.cpp and tasks.cpp have in common.
#pragma once
#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <utility>

#ifdef __SSE__
#include <xmmintrin.h>
#endif

#include "quern/tensor/float_mode.h"
#include "quern/tensor/parallel.h"
#include "quern/tensor/span.h"

namespace quern::detail {

class Job;

/// Threads that take part in the jobs of each other.
class Team {
 public:
  virtual int threads() const = 0;
  /// Runs the calling thread's job, with whoever has time.
  virtual void share(Job& job) = 0;

 protected:
  ~Team() = default;
};

struct ThisThread {
  int index = -1;        // -1: outside parallel_for and with_tasks
  Team* team = nullptr;  // whose body or task it is in; null in cells
};
inline thread_local ThisThread this_thread;

/// One thread's share of a parallel_for: its index and floating-point mode for as long as it lasts.
class Share {
 public:
  explicit Share(int thread) { this_thread = {.index = thread}; }
  ~Share() {
    this_thread = before_;
#ifdef __SSE__
    _mm_sfence();  // what kernels have stored past the caches, others may read from now on
#endif
  }
  Share(const Share&) = delete;
  Share& operator=(const Share&) = delete;

 private:
  const ThisThread before_ = this_thread;
  KernelFloatMode mode_;
};

/// The exception of the lowest cell that threw one: the same whichever thread comes first.
class FirstError {
 public:
  void offer(int64_t cell, std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    if (error_ != nullptr && cell > cell_) return;
    cell_ = cell;
    error_ = std::move(error);
  }
  void rethrow() const {
    if (error_ != nullptr) std::rethrow_exception(error_);
  }

 private:
  std::mutex mutex_;
  int64_t cell_ = 0;
  std::exception_ptr error_;
};

/// A contiguous range of the cells for each thread: neighbours share cache lines and pages, and the
/// next op that cuts the same tensor finds them in the same core's cache. A thread that is through
/// with its own helps with the others': cells differ, and so does what else the cores have to do.
/// Of the last cells it takes pieces, since the others would wait for a whole one.
class Ranges {
 public:
  Ranges(int64_t cells, int64_t pieces, int threads)
      : count_(std::min(threads, kMost)), pieces_(pieces) {
    for (int i = 0; i < count_; ++i) {
      ranges_[i].next.store(cells * i / count_ * pieces, std::memory_order_relaxed);
      ranges_[i].end = cells * (i + 1) / count_ * pieces;
    }
  }

  /// body(cell, begin, end) on pieces of cells until none is left.
  template <class Body>
  void run(int thread, Body body) {
    for (int i = 0; i < count_; ++i) {
      Range& range = ranges_[(thread + i) % count_];
      int64_t first;
      while (const int64_t count = range.take(pieces_, first))
        body(first / pieces_, first % pieces_, first % pieces_ + count);
    }
  }

 private:
  static constexpr int kMost = 64;  // of more threads, several share a range
  struct alignas(64) Range {
    std::atomic<int64_t> next;
    int64_t end;

    /// How many pieces it takes, from `first` on: a whole cell, of the last one half of what is
    /// left of it.
    int64_t take(int64_t pieces, int64_t& first) {
      first = next.load(std::memory_order_relaxed);
      int64_t count;
      do {
        if (first >= end) return 0;
        count = std::clamp<int64_t>((end - first) / 2, 1, pieces);
      } while (!next.compare_exchange_weak(first, first + count, std::memory_order_relaxed));
      return count;
    }
  };

  Range ranges_[kMost];
  int count_;
  int64_t pieces_;
};

/// A parallel_for on its way.
class Job {
 public:
  Job(int64_t cells, int64_t pieces, int threads, FunctionRef<void(int64_t, int64_t, int64_t)> body)
      : ranges_(cells, pieces, threads), body_(body) {}
  /// Takes part until no cell is left to take. Has it taken any?
  bool run(int thread) {
    const Share share(thread);
    const InsideSpan inside(span_.span());
    const int64_t start = span_.on() ? SharedSpan::now() : 0;
    bool any = false;
    ranges_.run(thread, [&](int64_t cell, int64_t begin, int64_t end) {
      any = true;
      try {
        body_(cell, begin, end);
      } catch (...) {
        error_.offer(cell, std::current_exception());
      }
    });
    if (any && span_.on()) span_.record(SpanKind::kernel, start, SharedSpan::now());
    return any;
  }
  void rethrow() const { error_.rethrow(); }

 private:
  Ranges ranges_;
  FunctionRef<void(int64_t, int64_t, int64_t)> body_;
  FirstError error_;
  SharedSpan span_;
};

}  // namespace quern::detail
