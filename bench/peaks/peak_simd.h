// The loops of peak_kernel.h over a vector type of the compiler's; included by the files compiled
// with ISA flags, hence the anonymous namespace.
#pragma once
#include "peak_kernel.h"

namespace quern::bench {
namespace {

// "+v": a vector register whose content the compiler must believe to change, so that it neither
// folds chains into one nor drops a result nobody reads.
#ifdef __x86_64__
#define QUERN_TOUCH(vector) asm volatile("" : "+v"(vector))
#else
#define QUERN_TOUCH(vector) asm volatile("" : "+w"(vector))
#endif

/// `chains` accumulators, each of them multiply_add(accumulator) a round.
template <int chains, class V, class F>
void run_chains(int64_t rounds, V zero, F multiply_add) {
  V sums[chains];
#pragma GCC unroll 32
  for (V& sum : sums) {
    sum = zero;
    QUERN_TOUCH(sum);
  }
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 32
    for (V& sum : sums) {
      sum = multiply_add(sum);
      QUERN_TOUCH(sum);
    }
  }
}

/// Cache lines `ahead` bytes ahead are fetched to L2, as the library's kernels do:
/// hardware prefetchers start anew in every page of 4 KB,
/// and a core's own loads have too few lines under way.
template <int bytes_of_vector, int64_t ahead>
struct Memory {
  typedef float V __attribute__((vector_size(bytes_of_vector), may_alias));
  static constexpr int64_t kUnroll = 8;
  static constexpr int64_t kStep = kUnroll * bytes_of_vector;  // GCC 12 takes sizeof(V) for 4

  /// With the first vector of each line.
  template <bool to_write>
  static void fetch(const V* a, int64_t j) {
    if (ahead > 0 && j * bytes_of_vector % 64 == 0)
      __builtin_prefetch(reinterpret_cast<const char*>(a + j) + ahead, to_write, 2);
  }
  static void read(const void* a_, int64_t bytes) {
    const V* a = static_cast<const V*>(a_);
    for (int64_t i = 0; i < bytes / kStep; ++i, a += kUnroll) {
#pragma GCC unroll 8
      for (int64_t j = 0; j < kUnroll; ++j) {
        fetch<false>(a, j);
        V value = a[j];
        QUERN_TOUCH(value);
      }
    }
  }
  static void copy(const void* a_, void* b_, int64_t bytes) {
    const V* a = static_cast<const V*>(a_);
    V* b = static_cast<V*>(b_);
    for (int64_t i = 0; i < bytes / kStep; ++i, a += kUnroll, b += kUnroll) {
#pragma GCC unroll 8
      for (int64_t j = 0; j < kUnroll; ++j) {
        fetch<false>(a, j);
        fetch<true>(b, j);
        V value = a[j];
        QUERN_TOUCH(value);  // else the compiler calls memcpy
        b[j] = value;
      }
    }
  }
  static void update(void* a_, int64_t bytes) {
    V* a = static_cast<V*>(a_);
    for (int64_t i = 0; i < bytes / kStep; ++i, a += kUnroll) {
#pragma GCC unroll 8
      for (int64_t j = 0; j < kUnroll; ++j) {
        fetch<true>(a, j);
        V value = a[j];
        QUERN_TOUCH(value);
        a[j] = value;
      }
    }
  }
};

template <int bytes_of_vector, int64_t ahead>
constexpr MemoryPasses kPasses{Memory<bytes_of_vector, ahead>::read,
                               Memory<bytes_of_vector, ahead>::copy,
                               Memory<bytes_of_vector, ahead>::update};

template <int bytes_of_vector>
constexpr MemoryLoop memory_loop(const char* name, Isa isa) {
  return {name, isa, kPasses<bytes_of_vector, 0>, kPasses<bytes_of_vector, 2048>};
}

}  // namespace
}  // namespace quern::bench
