// Step 7's tile on the CPU's own tile registers. In assembly, since GCC 12's intrinsics paste the
// number of a register into a name, where a template's argument does not reach.
#include "7_amx_tiles.h"

namespace quern::lessons {
namespace {

struct Registers {
  static void begin() {
    struct alignas(64) {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } const shapes;
    asm volatile("ldtilecfg %0" ::"m"(shapes));
  }
  static void end() { asm volatile("tilerelease"); }
  template <int t>
  static void load(const void* from, int64_t row_bytes) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(row_bytes), "i"(t) : "memory");
  }
  template <int t>
  static void store(void* to, int64_t row_bytes) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(row_bytes), "i"(t) : "memory");
  }
  template <int c, int a, int b>
  static void dot() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(c), "i"(a), "i"(b));
  }
};

}  // namespace

constinit const Tile<bfloat16> kAmxTile = amx_tile_on<Registers>();

}  // namespace quern::lessons
