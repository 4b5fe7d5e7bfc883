// The contract of the loops that measure what a CPU can do: one record an instruction set, in files
// compiled with its flags (peak_<isa>.cpp), which see this and intrinsics only.
#pragma once
#include <cstdint>

#include "quern/tensor/types.h"

namespace quern::bench {

/// Multiplies and adds in registers alone, in as many independent chains as hide the latency.
struct ArithmeticLoop {
  const char* name;
  Isa isa;
  DType dtype;   // of the factors; sums are f32
  int64_t flop;  // a round
  void (*run)(int64_t rounds);
};

/// Passes over memory. Pointers are aligned to 64 bytes, `bytes` a multiple of 1024.
struct MemoryPasses {
  void (*read)(const void* a, int64_t bytes);
  void (*copy)(const void* a, void* b, int64_t bytes);
  void (*update)(void* a, int64_t bytes);  ///< reads it and writes it back
};

/// `far` is for what a core's own caches do not hold, and fetches ahead.
struct MemoryLoop {
  const char* name;
  Isa isa;
  MemoryPasses near, far;
};

extern const ArithmeticLoop peak_f32_portable;
extern const MemoryLoop memory_portable;
#ifdef __x86_64__
extern const ArithmeticLoop peak_f32_avx2, peak_f32_avx512, peak_bf16_avx512_bf16, peak_bf16_amx;
extern const MemoryLoop memory_avx2, memory_avx512;
#endif

}  // namespace quern::bench
