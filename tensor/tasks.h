// Work that goes on beside other work, each with a parallel_for of its own.
#pragma once
#include <functional>

#include "quern/tensor/parallel.h"

namespace quern {

/// What runs beside the body of a with_tasks.
class Tasks {
 public:
  /// Takes f, to run it on some thread before with_tasks returns. Tasks begin in their order. Of
  /// what is set for a thread, such as whether history is recorded, f sees the caller's only if it
  /// brings it.
  virtual void run(std::function<void()> f) = 0;

 protected:
  ~Tasks() = default;
};

/// Runs body(tasks) and what it gives to tasks.run(f), beside each other where there are threads:
/// each is one thread's, and whoever has none takes cells of the parallel_for that the others are
/// in. So threads wait for each other once, at the end, and what memory holds up runs beside what
/// computes. On one thread, inside parallel_for, and where QUERN_VERBOSE times single ops, a task
/// runs when it is given. If some throw, the exception of the body, else that of the first task, is
/// rethrown here; tasks that have not begun then may be dropped.
void with_tasks(FunctionRef<void(Tasks&)> body);

}  // namespace quern
