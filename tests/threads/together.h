// Threads of a user that start together.
#pragma once
#include <barrier>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

namespace quern::test {

/// Runs body(0) ... body(threads-1), each on a thread of its own, all from one moment on. Rethrows
/// what one threw.
inline void together(int threads, const std::function<void(int)>& body) {
  std::barrier start(threads);
  std::vector<std::exception_ptr> errors(static_cast<size_t>(threads));
  {
    std::vector<std::jthread> running;
    for (int i = 0; i < threads; ++i)
      running.emplace_back([&, i] {
        start.arrive_and_wait();
        try {
          body(i);
        } catch (...) {
          errors[static_cast<size_t>(i)] = std::current_exception();
        }
      });
  }
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

}  // namespace quern::test
