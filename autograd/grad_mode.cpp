#include "quern/autograd/grad_mode.h"

namespace quern {

namespace detail {
ThreadMode& thread_mode() {
  thread_local ThreadMode mode;
  return mode;
}
}  // namespace detail

bool grad_enabled() { return detail::thread_mode().grad; }

GradMode::GradMode(bool enabled) : before_(grad_enabled()) { detail::thread_mode().grad = enabled; }
GradMode::~GradMode() { detail::thread_mode().grad = before_; }

}  // namespace quern
