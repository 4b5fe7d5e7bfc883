// Is history recorded? Per thread; on at first.
#pragma once

namespace quern {

bool grad_enabled();  ///< in this thread

/// Sets it for a scope: GradMode guard(false).
class GradMode {
 public:
  explicit GradMode(bool enabled);  ///< until its end
  ~GradMode();
  GradMode(const GradMode&) = delete;
  GradMode& operator=(const GradMode&) = delete;

 private:
  bool before_;
};

/// Records nothing for a scope, as torch.no_grad().
class NoGradGuard : GradMode {
 public:
  NoGradGuard() : GradMode(false) {}
};

namespace detail {
/// A thread's switches. That of autocast (ops/autocast.h) is kept here because backward() turns off
/// both, and says so in the third.
struct ThreadMode {
  bool grad = true;
  bool autocast = false;
  bool backward = false;
};
ThreadMode& thread_mode();

/// Takes over another thread's for a scope, as a task does (tensor/tasks.h).
class ThreadModeGuard {
 public:
  explicit ThreadModeGuard(ThreadMode mode);  ///< until its end
  ~ThreadModeGuard();
  ThreadModeGuard(const ThreadModeGuard&) = delete;
  ThreadModeGuard& operator=(const ThreadModeGuard&) = delete;

 private:
  ThreadMode before_;
};
}  // namespace detail

}  // namespace quern
