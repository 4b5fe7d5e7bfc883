// Scratch of the cells of a parallel_for: made once, used by one cell of a thread after the other.
#pragma once
#include "quern/tensor/parallel.h"
#include "quern/tensor/storage.h"

namespace quern {

/// An uninitialised array of T for each thread, as long as num_threads() stays what it is.
template <class T>
class PerThread {
 public:
  explicit PerThread(int64_t items)
      : pitch_(items == 0 ? 0 : (items + kLine - 1) / kLine * kLine + kApart),
        all_(num_threads() * pitch_ * static_cast<int64_t>(sizeof(T))) {}
  /// That of the calling thread; aligned to a cache line, which no other thread writes.
  T* get() const { return all_.as<T>() + thread_index() * pitch_; }

 private:
  static constexpr int64_t kLine = 64;
  /// Some pages: prefetchers run ahead of what a thread reads and writes, and would take lines from
  /// the thread whose they are, which costs most where the threads' cores share no cache.
  static constexpr int64_t kApart = (16 << 10) / static_cast<int64_t>(sizeof(T));
  int64_t pitch_;
  Workspace all_;
};

}  // namespace quern
