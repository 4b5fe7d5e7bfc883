// Scratch of the cells of a parallel_for: made once, used by one cell of a thread after the other.
#pragma once
#include <array>
#include <concepts>
#include <tuple>
#include <utility>

#include "quern/tensor/divide.h"
#include "quern/tensor/parallel.h"
#include "quern/tensor/storage.h"

namespace quern {

/// An uninitialised array of each T for each thread that a parallel_for here would have, as long as
/// num_threads() stays what it is.
template <class... T>
class PerThread {
 public:
  template <std::convertible_to<int64_t>... Items>
  requires(sizeof...(Items) == sizeof...(T)) explicit PerThread(Items... items)
      : ends_(ends({items * static_cast<int64_t>(sizeof(T))...})),
        pitch_(ends_.back() == 0 || runs_alone() ? 0 : ends_.back() + kApart),
        all_(pitch_ == 0 ? ends_.back() : num_threads() * pitch_) {}

  /// Those of the calling thread: a pointer, or a tuple of them. Aligned to a cache line, which no
  /// other thread writes.
  auto get() const { return get(std::index_sequence_for<T...>()); }

 private:
  static constexpr size_t kCount = sizeof...(T);
  static constexpr int64_t kLine = 64;
  /// Some pages: prefetchers run ahead of what a thread reads and writes, and would take lines from
  /// the thread whose they are, which costs most where the threads' cores share no cache.
  static constexpr int64_t kApart = 16 << 10;

  static std::array<int64_t, kCount> ends(std::array<int64_t, kCount> bytes) {
    int64_t end = 0;
    for (int64_t& b : bytes) b = end += round_up(b, kLine);
    return bytes;
  }
  template <size_t... I>
  auto get(std::index_sequence<I...>) const {
    std::byte* const mine = all_.as<std::byte>() + thread_index() * pitch_;
    if constexpr (kCount == 1)
      return reinterpret_cast<std::tuple_element_t<0, std::tuple<T...>>*>(mine);
    else return std::tuple(reinterpret_cast<T*>(mine + (I == 0 ? 0 : ends_[I - 1]))...);
  }

  std::array<int64_t, kCount> ends_;  // of each array, in bytes
  int64_t pitch_;
  Workspace all_;
};

}  // namespace quern
