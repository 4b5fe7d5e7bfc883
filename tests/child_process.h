// Processes that a test starts and waits for.
#pragma once
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <functional>

namespace quern::testing {

/// A process that runs `work` and ends with status 0 unless that throws.
inline pid_t start(const std::function<void()>& work) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child != 0) return child;
  try {
    work();
    ::_exit(0);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
  } catch (...) {  // a check of doctest's
  }
  ::_exit(1);
}

/// Its status, as waitpid() has it.
inline int wait_for(pid_t child) {
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return status;
}

}  // namespace quern::testing
