// Threads. The contract behind "same bits for any thread count": work is cut into cells by shape
// alone, a cell's result depends on nothing but its index, and partial results are merged in a
// fixed order.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <type_traits>

namespace quern {

int num_threads();  ///< that parallel_for() shares its cells among
/// Not while another thread is inside an op, whose scratch is made for as many as there were
/// before. Error: less than 1. The default is OpenMP's (OMP_NUM_THREADS, the cpuset, the number of
/// cores).
void set_num_threads(int threads);
/// 0 ... num_threads()-1 inside parallel_for and with_tasks, else 0: for per-thread scratch, never
/// for results.
int thread_index();
/// Is this inside a parallel_for, so that another one runs in this thread alone?
bool runs_alone();

/// A borrowed callable, two pointers wide.
template <class Signature>
class FunctionRef;
/// Of a signature R(Args...).
template <class R, class... Args>
class FunctionRef<R(Args...)> {
 public:
  /// Borrows `f`, which must outlive it.
  template <class F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, FunctionRef>) FunctionRef(F&& f)
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(f)))),
        call_([](void* object, Args... args) -> R {
          return (*static_cast<std::remove_reference_t<F>*>(object))(args...);
        }) {}
  /// Calls it.
  R operator()(Args... args) const { return call_(object_, args...); }

 private:
  void* object_;
  R (*call_)(void*, Args...);
};

/// Runs body(0) ... body(cells-1), each once, on some thread; returns when all are done. If bodies
/// throw, the exception of the lowest cell is rethrown here. Inside another parallel_for it runs in
/// the calling thread. Every body, on one thread or many, computes in KernelFloatMode: to nearest,
/// without traps, with denormals read and written as zero.
void parallel_for(int64_t cells, FunctionRef<void(int64_t)> body);

/// The same of cells that can be computed in pieces: runs body(cell, begin, end) on all pieces
/// 0..pieces of each. A thread takes whole cells, but of the last one of its share half of what is
/// left at a time, so that all are through together. How the others get on tells which pieces it
/// takes: no result may depend on it.
void parallel_for(int64_t cells, int64_t pieces, FunctionRef<void(int64_t, int64_t, int64_t)> body);

/// Cuts 0..n into chunks of `grain` and runs body(begin, end) on each.
template <class F>
void parallel_chunks(int64_t n, int64_t grain, F&& body) {
  parallel_for((n + grain - 1) / grain,
               [&](int64_t i) { body(i * grain, std::min(n, (i + 1) * grain)); });
}

}  // namespace quern
