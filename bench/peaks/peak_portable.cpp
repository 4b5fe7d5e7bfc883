#include "peak_simd.h"

namespace quern::bench {
namespace {
using V = float __attribute__((vector_size(16)));

void run(int64_t rounds) {
  V x = V{} + 1.0f, y = V{} + 0.5f;
  QUERN_TOUCH(x);
  QUERN_TOUCH(y);
  run_chains<12>(rounds, V{}, [&](V sum) { return sum + x * y; });
}
}  // namespace

constinit const ArithmeticLoop peak_f32_portable{"f32 multiply and add", Isa::portable, DType::f32,
                                                 12 * 4 * 2, run};
constinit const MemoryLoop memory_portable = memory_loop<16>("16 bytes", Isa::portable);

}  // namespace quern::bench
