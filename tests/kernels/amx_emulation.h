// The tile instructions of AMX in plain C++, after the operation sections of Intel's Software
// Developer's Manual, so that the AMX kernel's source runs on any machine. What raises #UD or #GP
// throws here.
#pragma once
#include <cfloat>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "quern/ops/kernels/activation.h"
#include "quern/ops/kernels/gemm/tiles/strip_amx.h"
#include "quern/ops/kernels/gemm/tiles/tile_amx.h"
#include "quern/tensor/bfloat16.h"

namespace quern::test {

class EmulatedTiles {
 public:
  static void configure(const kernels::TileConfig& config) {
    require(config.palette == 1 && config.start_row == 0, "palette or start row");
    for (uint8_t byte : config.reserved) require(byte == 0, "reserved byte");
    for (int t = 0; t < 16; ++t) {
      const int rows = config.rows[t], row_bytes = config.row_bytes[t];
      require(t < kTiles ? rows <= kRows && row_bytes <= kRowBytes : rows == 0 && row_bytes == 0,
              "tile too large");
      require((rows == 0) == (row_bytes == 0) && row_bytes % 4 == 0, "tile half configured");
      if (t < kTiles) tiles[t] = Tile{rows, row_bytes, {}};
    }
  }
  static void release() {
    for (Tile& tile : tiles) tile = {};
  }
  template <int t>
  static void zero() {
    std::memset(configured(t).bytes, 0, sizeof tiles[t].bytes);
  }
  template <int t>
  static void load(const void* from, int64_t stride) {
    zero<t>();
    for (int row = 0; row < tiles[t].rows; ++row)
      std::memcpy(tiles[t].bytes[row], static_cast<const std::byte*>(from) + row * stride,
                  static_cast<size_t>(tiles[t].row_bytes));
  }
  template <int t>
  static void store(void* to, int64_t stride) {
    for (int row = 0; row < configured(t).rows; ++row)
      std::memcpy(static_cast<std::byte*>(to) + row * stride, tiles[t].bytes[row],
                  static_cast<size_t>(tiles[t].row_bytes));
  }

  /// TDPBF16PS: even and odd k are summed apart over the whole tile, starting from zero, then
  /// added, and only then is the tile of C.
  template <int c, int a, int b>
  static void dot() {
    static_assert(c != a && c != b && a != b, "#UD");
    Tile &sums = configured(c), &left = configured(a), &right = configured(b);
    require(sums.rows == left.rows && sums.row_bytes == right.row_bytes &&
                left.row_bytes == 4 * right.rows,
            "tiles that don't fit");
    for (int row = 0; row < sums.rows; ++row) {
      for (int column = 0; column < sums.row_bytes / 4; ++column) {
        float even = 0, odd = 0;
        for (int k = 0; k < left.row_bytes / 4; ++k) {
          even = multiply_add(left.bf16(row, 2 * k), right.bf16(k, 2 * column), even);
          odd = multiply_add(left.bf16(row, 2 * k + 1), right.bf16(k, 2 * column + 1), odd);
        }
        sums.set_f32(row, column, add(sums.f32(row, column), add(even, odd)));
      }
    }
  }

  /// a·b + c rounded once, to nearest even, with inputs and outputs below the smallest normal
  /// number taken as zero.
  static float multiply_add(float a, float b, float c) {
    a = flush(a), b = flush(b), c = flush(c);
    const float result = std::fma(a, b, c);
    // What is "below" is told as if the exponent had no limit: a sum that comes to FLT_MIN only
    // because denormals are coarser is flushed. The product of two bf16 is exact in double.
    if (std::fabs(result) == FLT_MIN && std::fabs(static_cast<double>(a) * static_cast<double>(b) +
                                                  static_cast<double>(c)) < FLT_MIN * (1 - 0x1p-25))
      return std::copysign(0.0f, result);
    return flush(result);
  }
  static float add(float a, float b) { return multiply_add(a, 1, b); }

 private:
  static constexpr int kTiles = 8, kRows = 16, kRowBytes = 64;

  struct Tile {
    int rows, row_bytes;
    std::byte bytes[kRows][kRowBytes];

    float bf16(int row, int column) const {
      uint16_t bits;
      std::memcpy(&bits, &bytes[row][2 * column], sizeof bits);
      return bfloat16::from_bits(bits);
    }
    float f32(int row, int column) const {
      float value;
      std::memcpy(&value, &bytes[row][4 * column], sizeof value);
      return value;
    }
    void set_f32(int row, int column, float value) {
      std::memcpy(&bytes[row][4 * column], &value, sizeof value);
    }
  };

  static float flush(float x) { return std::fabs(x) < FLT_MIN ? std::copysign(0.0f, x) : x; }
  static void require(bool ok, const char* what) {
    if (!ok) throw std::logic_error(what);
  }
  static Tile& configured(int t) {
    require(tiles[t].rows > 0, "tile not configured");
    return tiles[t];
  }

  static inline thread_local Tile tiles[kTiles] = {};
};

/// What becomes of a strip's tiles, an element after the other.
struct PlainFinish {
  static kernels::FinishStrip* of(const kernels::Epilogue& f) {
    return f.wide ? run<float> : run<bfloat16>;
  }
  static void prefetch(const void*) {}

  template <class Item>
  static void run(const kernels::SummedTile& tile, int64_t begin, int64_t end) {
    using enum kernels::Epilogue::Kind;
    const kernels::Epilogue& f = *tile.epilogue;
    for (int64_t i = begin; i < end; ++i) {
      const kernels::StripRow row = tile.tile->rows[i];
      for (int64_t j = 0; j < tile.n; ++j) {
        const int64_t at = tile.tile->out + row.to + tile.column + j;
        const auto item = [&](const void* tensor) {
          return static_cast<float>(static_cast<const Item*>(tensor)[at]);
        };
        const auto array = [&](const void* p) {
          return static_cast<const float*>(p)[tile.column + j];
        };
        const auto sum = [&](void* p) -> float& { return static_cast<float*>(p)[tile.column + j]; };
        float v = tile.sums[row.row * 32 + j];
        if (f.kind == activate) v += array(f.map.shift);
        if (f.residual && (f.kind == activate || f.kind == gradient)) v += item(f.residual);
        if (f.kind == activate) v = kernels::activated(v, f.activation);
        if (f.kind == moments) {
          const float distance = v - array(f.map.center);
          sum(f.first) += distance;
          sum(f.second) += distance * distance;
        }
        if (f.kind == gradient) {
          const float distance = item(f.x) - array(f.map.center);
          v = kernels::through(v, std::fma(distance, array(f.map.scale), array(f.map.shift)),
                               f.map.activation);
          sum(f.first) += v;
          sum(f.second) += v * distance;
        }
        static_cast<Item*>(f.out)[at] = static_cast<Item>(v);
      }
    }
  }
};

/// The AMX kernel's source on these tiles, as a record for tests that walk kernels.
inline constexpr kernels::GemmKernel kEmulatedAmx = [] {
  using Kernel = kernels::AmxGemm<EmulatedTiles>;
  return kernels::GemmKernel{.name = "gemm_bf16_bf16_f32_32x32k2_emulated",
                             .isa = Isa::portable,
                             .a = DType::bf16,
                             .mr = Kernel::kMr,
                             .nr = Kernel::kNr,
                             .kr = Kernel::kKr,
                             .k_multiple = Kernel::kKMultiple,
                             .run = Kernel::run,
                             .run_strip = kernels::AmxStrip<EmulatedTiles, PlainFinish>::run,
                             .enter = Kernel::enter,
                             .leave = Kernel::leave};
}();

}  // namespace quern::test
