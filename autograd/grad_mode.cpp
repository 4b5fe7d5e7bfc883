#include "quern/autograd/grad_mode.h"

#include <utility>

namespace quern {

namespace detail {
ThreadMode& thread_mode() {
  thread_local ThreadMode mode;
  return mode;
}

ThreadModeGuard::ThreadModeGuard(ThreadMode mode) : before_(std::exchange(thread_mode(), mode)) {}
ThreadModeGuard::~ThreadModeGuard() { thread_mode() = before_; }
}  // namespace detail

bool grad_enabled() { return detail::thread_mode().grad; }

GradMode::GradMode(bool enabled) : before_(grad_enabled()) { detail::thread_mode().grad = enabled; }
GradMode::~GradMode() { detail::thread_mode().grad = before_; }

}  // namespace quern
