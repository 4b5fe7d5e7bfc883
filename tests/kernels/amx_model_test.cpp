// The model of AMX (bench/amx_model) counts what arithmetic says.
#include <doctest/doctest.h>

#include <string_view>
#include <vector>

#include "../../bench/amx_model/cycles.h"

using namespace quern;
using namespace quern::kernels;
using namespace quern::bench;

namespace {

/// Memory on a cache line.
struct Lines {
  explicit Lines(size_t count) : memory(count + 1) {}
  void* data() {
    const auto at = reinterpret_cast<uintptr_t>(memory.data());
    return reinterpret_cast<std::byte*>(memory.data()) + (64 - at % 64) % 64;
  }
  struct Line {
    std::byte bytes[64];
  };
  std::vector<Line> memory;
};

}  // namespace

TEST_CASE("a modelled cache drops the line of a set that was unused for longest") {
  Cache cache(4 * 64, 2);  // even lines fall in one set of two ways, odd ones in the other
  CHECK(!cache.touch(0, true).hit);
  CHECK(!cache.touch(2, false).hit);
  CHECK(!cache.touch(1, false).hit);
  CHECK(cache.touch(0, false).hit);
  CHECK(!cache.touch(4, false).wrote_back);  // drops 2, which was only read
  CHECK(cache.touch(0, false).hit);
  CHECK(!cache.touch(2, false).hit);        // drops 4
  CHECK(cache.touch(6, false).wrote_back);  // drops 0
  CHECK(cache.touch(1, false).hit);
}

TEST_CASE("a modelled product counts its multiplications, loads, stores and lines") {
  constexpr int64_t m = 32, n = 32, k = 64;
  Lines a(m * k * 2 / 64), b(k * n * 2 / 64), c(m * n * 4 / 64);
  const void *first_a = a.data(), *first_b = b.data();
  const GemmTile tile{.m = m,
                      .n = n,
                      .k = k,
                      .batch = 1,
                      .a = &first_a,
                      .lda = k,
                      .b = &first_b,
                      .c = c.data(),
                      .ldc = n,
                      .accumulate = false};
  core = {};
  counting_amx(true).run(tile);
  const Counts cold = core.counts;
  CHECK(cold.multiplications == m / 16 * (n / 16) * (k / 32));
  CHECK(cold.tile_loads == 2 * (m / 16 + n / 16));
  CHECK(cold.loaded_lines == 16 * cold.tile_loads);
  CHECK(cold.loaded_rows == cold.loaded_lines);
  CHECK(cold.tile_stores == 4);
  CHECK(cold.stored_lines == 64);
  CHECK(cold.of_operands.beyond == 64 + 64);
  CHECK(cold.of_operands.l2 == 0);
  CHECK(cold.of_sums.beyond == 64);
  CHECK(Cycles(cold).products == 16 * 8);
  CHECK(Cycles(cold).loads == 8 * 8);
  CHECK(Cycles(cold).bound() == std::string_view("beyond"));

  core.counts = {};
  counting_amx(true).run(tile);
  CHECK(core.counts.multiplications == cold.multiplications);
  CHECK(core.counts.of_operands.beyond + core.counts.of_operands.l2 == 0);
  CHECK(core.counts.of_sums.beyond + core.counts.of_sums.l2 == 0);

  // A row between two lines is two.
  core = {};
  GemmTile torn = tile;
  const void* shifted_b = static_cast<const std::byte*>(first_b) + 2;
  torn.b = &shifted_b, torn.k = 32;
  counting_amx(true).run(torn);
  CHECK(core.counts.loaded_rows == 64);
  CHECK(core.counts.loaded_lines == 32 + 2 * 32);
}
