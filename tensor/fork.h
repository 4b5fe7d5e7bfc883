// What a child of fork() finds.
#pragma once
#include <mutex>

namespace quern::detail {

/// From now on `mutex`, which must live for ever, is held while the process forks, so that the
/// child finds it free and what it guards whole. Mutexes that are taken while others are held must
/// come first.
void hold_across_fork(std::mutex& mutex);

}  // namespace quern::detail
