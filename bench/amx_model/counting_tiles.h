// AMX tiles that count instead of computing: the micro-kernels' own source on them, as a
// GemmKernel, lets the library's drivers tell what they would ask of a core.
#pragma once
#include <array>
#include <cstdint>

#include "cache.h"
#include "quern/ops/kernels/gemm/tiles/strip_amx.h"
#include "quern/ops/kernels/gemm/tiles/tile_amx.h"

namespace quern::bench {

/// Cache lines that a core's first level had not.
struct Traffic {
  int64_t l2 = 0;      // came from the second, or had to go there
  int64_t beyond = 0;  // came from L3 or memory; what goes there costs no reader anything
};

/// What a core did, in instructions and cache lines.
struct Counts {
  int64_t multiplications = 0, tile_loads = 0, tile_stores = 0;
  int64_t loaded_rows = 0, loaded_lines = 0;  // of tile loads; a row may lie in two lines
  int64_t stored_lines = 0;
  int64_t finished_rows = 0;                   // of 32 outputs
  int64_t copied_lines = 0, turned_lines = 0;  // written where operands are packed; transposed
  Traffic of_operands, of_sums, of_packing;    // tiles of A and B; tiles of C, and outputs
};

/// The core: its counts and its two levels of cache, a Xeon's with AMX. One, since one thread runs.
struct Core {
  Counts counts;
  Cache l1{48 << 10, 12}, l2{2 << 20, 16};

  /// Reads or writes memory, and returns how many lines that were.
  int64_t touch(const void* from, int64_t bytes, bool write, Traffic& traffic) {
    const auto at = reinterpret_cast<uintptr_t>(from);
    const uintptr_t first = at / Cache::kLine;
    const uintptr_t last = (at + static_cast<uintptr_t>(bytes) - 1) / Cache::kLine;
    for (uintptr_t line = first; line <= last; ++line) {
      const Cache::Found near = l1.touch(line, write);
      if (near.wrote_back) ++traffic.l2;
      if (!near.hit) ++(l2.touch(line, write).hit ? traffic.l2 : traffic.beyond);
    }
    return static_cast<int64_t>(last - first + 1);
  }
};
inline Core core;

class CountingTiles {
 public:
  static void configure(const kernels::TileConfig& config) {
    for (size_t t = 0; t < rows_.size(); ++t) rows_[t] = config.rows[t];
  }
  static void release() {}
  template <int t>
  static void zero() {}
  template <int t>
  static void load(const void* from, int64_t stride) {
    Counts& n = core.counts;
    ++n.tile_loads;
    n.loaded_rows += rows_[t];
    n.loaded_lines += touch(t, from, stride, false, t < 4 ? n.of_sums : n.of_operands);
  }
  template <int t>
  static void store(void* to, int64_t stride) {
    ++core.counts.tile_stores;
    core.counts.stored_lines += touch(t, to, stride, true, core.counts.of_sums);
  }
  template <int c, int a, int b>
  static void dot() {
    ++core.counts.multiplications;
  }

 private:
  static int64_t touch(size_t t, const void* at, int64_t stride, bool write, Traffic& traffic) {
    int64_t lines = 0;
    for (int64_t row = 0; row < rows_[t]; ++row)
      lines += core.touch(static_cast<const char*>(at) + row * stride, 64, write, traffic);
    return lines;
  }
  static inline std::array<uint8_t, 8> rows_{};
};

/// Reads a strip's sums and what its epilogue needs, writes the outputs.
struct CountingFinish {
  static kernels::CompleteOutputs* of(const kernels::Epilogue&) { return run; }
  /// What is fetched in time comes from where it would have come from.
  static void prefetch(const void*) {}

  static void run(const kernels::SummedTile& tile, int64_t begin, int64_t end) {
    const kernels::Epilogue& f = *tile.epilogue;
    const int64_t item = f.wide ? 4 : 2;
    for (int64_t i = begin; i < end; ++i) {
      const kernels::StripRow row = tile.tile->rows[i];
      const int64_t at = (tile.tile->out + row.to + tile.column) * item;
      const auto touch = [&](const void* tensor, bool write) {
        if (tensor)
          core.touch(static_cast<const char*>(tensor) + at, tile.n * item, write,
                     core.counts.of_sums);
      };
      core.touch(tile.sums + row.row * 32, 32 * sizeof(float), false, core.counts.of_sums);
      touch(f.residual, false);
      touch(f.x, false);
      touch(f.out, true);
    }
    core.counts.finished_rows += end - begin;
  }
};

/// `strips`: else panels stand outside, as before there were strips.
constexpr kernels::GemmKernel counting_amx(bool strips) {
  using Kernel = kernels::AmxGemm<CountingTiles>;
  return {.name = "gemm_bf16_bf16_f32_32x32k2_counted",
          .isa = Isa::portable,
          .a = DType::bf16,
          .mr = Kernel::kMr,
          .nr = Kernel::kNr,
          .kr = Kernel::kKr,
          .k_multiple = Kernel::kKMultiple,
          .run = Kernel::run,
          .run_strip = strips ? kernels::AmxStrip<CountingTiles, CountingFinish>::run : nullptr,
          .enter = Kernel::enter,
          .leave = Kernel::leave};
}

}  // namespace quern::bench
