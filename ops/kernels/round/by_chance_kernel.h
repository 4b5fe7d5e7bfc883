// The contract of rounding by chance: f32 to bf16 or f16, as tensor/round_by_chance.h says. Files
// compiled with ISA flags include this.
#pragma once
#include <cstdint>

#include "quern/ops/kernels/unit.h"

namespace quern::kernels {

/// to[i] = from[i], i = 0 ... n-1, which are elements `first` and on of the draw (seed, stream).
struct ByChance {
  const float* from;
  void* to;
  int64_t first, n;
  uint64_t seed, stream;
};

struct ByChanceKernel {
  const char* name;  // by_chance_<to>_<isa>
  Isa isa;
  DType to;
  void (*run)(const ByChance&);
};

}  // namespace quern::kernels
