// The tile instructions of AMX in plain C++, after the operation sections of Intel's Software
// Developer's Manual, so that the AMX kernel's source runs on any machine. What raises #UD or #GP
// throws here.
#pragma once
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <limits>
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
    const Pairs x(left), w(right);
    const auto add_products = x.plain && w.plain ? add_plain_products : multiply_add_row;
    for (int row = 0; row < sums.rows; ++row) {
      Row even{}, odd{};
      for (int k = 0; k < right.rows; ++k) {
        add_products(x.even[row][k], w.even[k], even);
        add_products(x.odd[row][k], w.odd[k], odd);
      }
      for (int column = 0; column < sums.row_bytes / 4; ++column)
        sums.set_f32(row, column, add(sums.f32(row, column), add(even[column], odd[column])));
    }
  }

  /// a·b + c rounded once, to nearest even, with inputs and outputs below the smallest normal
  /// number taken as zero.
  static float multiply_add(float a, float b, float c) {
    a = flush(a), b = flush(b), c = flush(c);
    return flush(std::fma(a, b, c), static_cast<double>(a) * static_cast<double>(b), c);
  }
  /// a·1 + b.
  static float add(float a, float b) {
    a = flush(a), b = flush(b);
    return flush(a + b, static_cast<double>(a), b);
  }

 private:
  static constexpr int kTiles = 8, kRows = 16, kRowBytes = 64, kColumns = kRowBytes / 4;
  using Row = float[kColumns];

  /// 0, or so near 1 that sums of a tile's products, which are multiples of 2^-74, round to 0 or
  /// normal numbers.
  static int is_plain(float x) {
    return int{x == 0} | (int{std::fabs(x) >= 0x1p-30f} & int{std::fabs(x) <= 0x1p30f});
  }
  /// sums + a·b of plain numbers: the product is exact.
  static void add_plain_products(float a, const Row& b, Row& sums) {
    for (int i = 0; i < kColumns; ++i) sums[i] += a * b[i];
  }

  /// sums + a·b. A product of two bf16 is exact in f32 among normal numbers, and then a sum that is
  /// rounded is rounded once. Rows where something is not normal go one by one.
  static void multiply_add_row(float a, const Row& b, Row& sums) {
    Row result;
    int others = 0;
    for (int i = 0; i < kColumns; ++i) {
      const float product = a * b[i];
      result[i] = product + sums[i];
      const int exact = is_normal(product) | int{a == 0} | int{b[i] == 0};
      others |= 1 ^ (exact & (is_normal(result[i]) | int{result[i] == 0}));
    }
    if (others == 0) std::memcpy(sums, result, sizeof result);
    else
      for (int i = 0; i < kColumns; ++i) sums[i] = multiply_add(a, b[i], sums[i]);
  }
  /// Not FLT_MIN: a result that comes to it may have been rounded up.
  static int is_normal(float x) {
    return int{std::fabs(x) > FLT_MIN} & int{std::fabs(x) <= std::numeric_limits<float>::max()};
  }

  struct Tile {
    int rows, row_bytes;
    std::byte bytes[kRows][kRowBytes];

    float f32(int row, int column) const {
      float value;
      std::memcpy(&value, &bytes[row][4 * column], sizeof value);
      return value;
    }
    void set_f32(int row, int column, float value) {
      std::memcpy(&bytes[row][4 * column], &value, sizeof value);
    }
  };

  /// A tile's pairs of bf16: the first and the second of each.
  struct Pairs {
    explicit Pairs(const Tile& tile) {
      int all = 1;
      for (int row = 0; row < tile.rows; ++row)
        for (int i = 0; i < kColumns; ++i) {
          uint32_t pair;
          std::memcpy(&pair, &tile.bytes[row][4 * i], sizeof pair);
          even[row][i] = flush(std::bit_cast<float>(pair << 16));
          odd[row][i] = flush(std::bit_cast<float>(pair & 0xffff0000));
          all &= is_plain(even[row][i]) & is_plain(odd[row][i]);
        }
      plain = all != 0;
    }
    Row even[kRows], odd[kRows];
    bool plain;
  };

  static float flush(float x) { return std::fabs(x) < FLT_MIN ? std::copysign(0.0f, x) : x; }
  /// The sum product + c, rounded. What is "below" is told as if the exponent had no limit: a sum
  /// that comes to FLT_MIN only because denormals are coarser is flushed. The product of two bf16
  /// is exact in double.
  static float flush(float sum, double product, float c) {
    if (std::fabs(sum) == FLT_MIN &&
        std::fabs(product + static_cast<double>(c)) < FLT_MIN * (1 - 0x1p-25))
      return std::copysign(0.0f, sum);
    return flush(sum);
  }
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
  static kernels::CompleteOutputs* of(const kernels::Epilogue& f) {
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
using EmulatedAmx = kernels::AmxGemm<EmulatedTiles>;
inline constexpr kernels::GemmKernel kEmulatedAmx{
    .name = "gemm_bf16_bf16_f32_32x32k2_emulated",
    .isa = Isa::portable,
    .a = DType::bf16,
    .mr = EmulatedAmx::kMr,
    .nr = EmulatedAmx::kNr,
    .kr = EmulatedAmx::kKr,
    .k_multiple = EmulatedAmx::kKMultiple,
    .run = EmulatedAmx::run,
    .run_strip = kernels::AmxStrip<EmulatedTiles, PlainFinish>::run,
    .enter = EmulatedAmx::enter,
    .leave = EmulatedAmx::leave};

}  // namespace quern::test
