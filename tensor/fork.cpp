#include "quern/tensor/fork.h"

#include <omp.h>
#include <pthread.h>

#include <vector>

namespace quern::detail {
namespace {

struct Held {
  std::mutex own;
  std::vector<std::mutex*> mutexes;
};

Held& held() {
  static Held& instance = *new Held;
  return instance;
}

/// A child has no thread but the one that forked. GNU's OpenMP does not know that, and would wait
/// for the threads of its pool in the child's first parallel op, for ever: they are let go before,
/// and made anew by the next op on either side. (Inside a parallel region nothing can be let go.)
void before_fork() {
  omp_pause_resource_all(omp_pause_soft);
  held().own.lock();
  for (auto i = held().mutexes.rbegin(); i != held().mutexes.rend(); ++i) (*i)->lock();
}
void after_fork() {
  for (std::mutex* mutex : held().mutexes) mutex->unlock();
  held().own.unlock();
}

[[maybe_unused]] const int registered = pthread_atfork(before_fork, after_fork, after_fork);

}  // namespace

void hold_across_fork(std::mutex& mutex) {
  const std::lock_guard lock(held().own);
  held().mutexes.push_back(&mutex);
}

}  // namespace quern::detail
