#include "quern/tensor/tasks.h"

#include <omp.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "quern/tensor/job.h"
#include "quern/tensor/storage.h"
#include "quern/tensor/verbose.h"

#ifdef __SSE__
#include <xmmintrin.h>
#endif

namespace quern {

using namespace detail;

namespace {

/// Waits for what another thread is about to do.
class Patience {
 public:
  void wait() {
    if (++spins_ % 256 == 0) std::this_thread::yield();  // there may be more threads than cores
    else relax();
  }

 private:
  static void relax() {
#if defined(__SSE__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }
  unsigned spins_ = 0;
};

/// A thread that looks for work. From a first look in vain to the one that finds some it waits.
class Search {
 public:
  explicit Search(const SharedSpan& span) : span_(span) {}
  void look() {
    if (span_.on()) looked_ = SharedSpan::now();
  }
  void in_vain() {
    if (since_ == 0) since_ = looked_;
    patience_.wait();
  }
  void found() {
    if (since_ > 0) span_.record(SpanKind::wait, since_, looked_, "wait");
    since_ = 0;
  }

 private:
  const SharedSpan& span_;
  Patience patience_;
  int64_t looked_ = 0, since_ = 0;
};

/// The threads of a with_tasks, what they have open to each other, and the tasks that nobody has
/// begun.
class TaskTeam final : public Tasks, public Team {
 public:
  explicit TaskTeam(int threads) : threads_(threads), desks_(static_cast<size_t>(threads)) {}

  void run(std::function<void()> f) override {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(f));
    ++unfinished_, ++queued_;
  }

  void lead(FunctionRef<void(Tasks&)> body) {
    enter(0);
    guarded(0, [&] { body(*this); });
    assist(0);
  }
  /// Until all is done.
  void assist(int thread) {
    enter(thread);
    const FloatMode mode(mode_);
    Search search(span_);
    for (search.look(); unfinished_ > 0; search.look())
      if (begin_task() || help(thread)) search.found();
      else search.in_vain();
    search.found();
    this_thread = {};
  }
  void share(Job& job) override {
    const int thread = this_thread.index;
    Desk& desk = desks_[static_cast<size_t>(thread)];
    desk.job = &job;
    job.run(thread);
    desk.job = nullptr;
    Search guests(span_);
    for (guests.look(); desk.guests > 0; guests.look()) guests.in_vain();
    guests.found();
  }
  int threads() const override { return threads_; }
  void rethrow() const { error_.rethrow(); }

 private:
  /// Where a thread's open parallel_for is found. Whoever looks counts as a guest first, so that it
  /// stays.
  struct alignas(64) Desk {
    std::atomic<Job*> job = nullptr;
    std::atomic<int> guests = 0;
  };

  void enter(int thread) { this_thread = {.index = thread, .team = this}; }
  template <class F>
  void guarded(int64_t order, F&& f) {
    try {
      f();
    } catch (...) {
      error_.offer(order, std::current_exception());
      const std::lock_guard lock(mutex_);
      unfinished_ -= static_cast<int>(tasks_.size() - begun_);
      while (begun_ < tasks_.size()) tasks_[begun_++] = nullptr;
      queued_ = 0;
    }
    --unfinished_;
  }
  bool begin_task() {
    if (queued_ == 0) return false;
    std::function<void()> task;
    int64_t order;
    {
      const std::lock_guard lock(mutex_);
      if (begun_ == tasks_.size()) return false;
      task = std::move(tasks_[begun_]);
      --queued_;
      order = static_cast<int64_t>(++begun_);
    }
    guarded(order, [&] {
      const InsideSpan inside(span_.span());
      const int64_t start = span_.on() ? SharedSpan::now() : 0;
      task();
      if (span_.on()) span_.record(SpanKind::kernel, start, SharedSpan::now(), "task");
    });
    return true;
  }
  /// With the parallel_for of some other thread.
  bool help(int thread) {
    for (int i = 1; i < threads_; ++i) {
      Desk& desk = desks_[static_cast<size_t>((thread + i) % threads_)];
      if (desk.job == nullptr) continue;
      ++desk.guests;
      Job* const job = desk.job;
      const bool helped = job && job->run(thread);
      --desk.guests;
      if (helped) return true;
    }
    return false;
  }

  const int threads_;
  const FloatMode::Mode mode_ = FloatMode::current();  // the caller's: a task runs on any thread
  CachedVector<Desk> desks_;
  std::atomic<int> unfinished_ = 1;  // the body and the tasks
  std::atomic<int> queued_ = 0;      // that are not begun, to be seen without the lock
  std::mutex mutex_;
  CachedVector<std::function<void()>> tasks_;
  size_t begun_ = 0;
  FirstError error_;
  const SharedSpan span_;  // that of with_tasks
};

/// Tasks where there is nobody to leave them to.
class AtOnce final : public Tasks {
 public:
  void run(std::function<void()> f) override { f(); }
};

}  // namespace

void with_tasks(FunctionRef<void(Tasks&)> body) {
  const int threads = num_threads();
  const bool alone = threads == 1 || this_thread.index >= 0;
  if (alone || verbosity() != Verbosity::off) {
    AtOnce tasks;
    return body(tasks);
  }
  TaskTeam team(threads);
#pragma omp parallel num_threads(threads)
  if (omp_get_thread_num() == 0) team.lead(body);
  else team.assist(omp_get_thread_num());
  team.rethrow();
}

}  // namespace quern
