// The AMX kernel's source on emulated tile instructions, and the emulation against the real ones.
#include "kernels/amx_emulation.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <iterator>
#include <limits>
#include <random>
#include <thread>
#include <vector>

#include "built_isa.h"
#include "emulated_cpu.h"
#include "kernels/gemm_tile_check.h"
#include "quern/ops/kernels/gemm/micro_kernel.h"
#include "quern/tensor/cpu_features.h"

using namespace quern;
using namespace quern::kernels;
using quern::test::Elements;
using quern::test::EmulatedTiles;
using quern::test::kEmulatedAmx;

namespace {

const GemmKernel* amx_record() {
  for (const GemmKernel* kernel : table<GemmKernel>())
    if (kernel->isa == Isa::amx) return kernel;
  return nullptr;
}

}  // namespace

TEST_CASE("the AMX kernel keeps to its contract on emulated tiles" *
          doctest::skip(test::kEmulatedCpu)) {
  test::check_tile(kEmulatedAmx);
}

TEST_CASE("the registered AMX kernel is the one that is emulated") {
  const GemmKernel* kernel = amx_record();
  if (!test::has_kernels(Isa::amx)) {
    MESSAGE("skipped: this build has no kernels for amx");
    return;
  }
  REQUIRE(kernel != nullptr);
  CHECK(kernel->mr == kEmulatedAmx.mr);
  CHECK(kernel->nr == kEmulatedAmx.nr);
  CHECK(kernel->kr == kEmulatedAmx.kr);
  CHECK(kernel->k_multiple == kEmulatedAmx.k_multiple);
}

TEST_CASE("emulated tdpbf16ps multiplies, rounds and flushes as documented") {
  const auto multiply_add = EmulatedTiles::multiply_add;
  // One rounding: 1 + 2^-24 is a tie that goes to even, 1 + 2^-23 + 2^-24 goes up.
  CHECK(multiply_add(0x1p-12f, 0x1p-12f, 1) == 1);
  CHECK(multiply_add(0x1p-12f, 0x1p-12f, 1 + 0x1p-23f) == 1 + 0x1p-22f);
  // Denormals are zero on the way in and on the way out, and keep their sign.
  CHECK(multiply_add(0x1p-127f, 0x1p127f, 0) == 0);
  CHECK(multiply_add(1, 1, 0x1p-127f) == 1);
  CHECK(multiply_add(0x1p-63f, 0x1p-64f, 0) == 0);
  CHECK(std::signbit(multiply_add(-0x1p-63f, 0x1p-64f, -0.0f)));
  CHECK(multiply_add(0x1p-63f, 0x1p-63f, 0) == FLT_MIN);
  CHECK(multiply_add(0x1p-63f, -0x1p-88f, FLT_MIN) == FLT_MIN);  // -2^-151: a tie, to even
  CHECK(multiply_add(0x1.8p-63f, -0x1p-88f, FLT_MIN) == 0);      // lower: tiny
  CHECK(std::isnan(multiply_add(std::numeric_limits<float>::infinity(), 0, 1)));
}

// Tiles belong to a thread, and so does what the kernel remembers of their configuration: a test
// that uses them directly does so in a thread of its own.

TEST_CASE("emulated tdpbf16ps sums even and odd k apart before it adds C") {
  std::jthread([] {
    // 2^24 swallows ones that are added to it one by one, not their sum.
    TileConfig config;
    for (int t = 0; t < 3; ++t) config.rows[t] = 16, config.row_bytes[t] = 64;
    EmulatedTiles::configure(config);
    Elements a(DType::bf16, 16 * 32), b(DType::bf16, 16 * 32), c(DType::f32, 16 * 16);
    a.fill(1), b.fill(1), c.fill(0x1p24);
    EmulatedTiles::load<0>(c.data(), 64);
    EmulatedTiles::load<1>(a.data(), 64);
    EmulatedTiles::load<2>(b.data(), 64);
    EmulatedTiles::dot<0, 1, 2>();
    EmulatedTiles::store<0>(c.data(), 64);
    CHECK(c.get(17) == 0x1p24 + 32);
    // A large even term leaves the odd sum alone: 2^24 + 1·15 (swallowed) + 16 odd ones.
    b.set(0, 0x1p24);
    EmulatedTiles::load<2>(b.data(), 64);
    EmulatedTiles::zero<0>();
    EmulatedTiles::dot<0, 1, 2>();
    EmulatedTiles::store<0>(c.data(), 64);
    CHECK(c.get(0) == 0x1p24 + 16);
    CHECK(c.get(1) == 32);
    // The two sums meet before either meets C: 2^24 + (1 + 1), not (2^24 + 1) + 1.
    a.fill(0), b.fill(1), c.fill(0x1p24);
    a.set(0, 1), a.set(1, 1);
    EmulatedTiles::load<0>(c.data(), 64);
    EmulatedTiles::load<1>(a.data(), 64);
    EmulatedTiles::load<2>(b.data(), 64);
    EmulatedTiles::dot<0, 1, 2>();
    EmulatedTiles::store<0>(c.data(), 64);
    CHECK(c.get(0) == 0x1p24 + 2);
  });
}

TEST_CASE("emulated tdpbf16ps is multiply_add for each k, also of what is hardly a number") {
  std::jthread([] {
    TileConfig config;
    for (int t = 0; t < 3; ++t) config.rows[t] = 16, config.row_bytes[t] = 64;
    EmulatedTiles::configure(config);
    constexpr float kInf = std::numeric_limits<float>::infinity();
    // Powers of two whose products and sums lie around the ends of the normal numbers, and others.
    const float rare[] = {0,        -0.0f,     0x1p-126f,     -0x1p-127f, 0x1p-63f, -0x1.8p-63f,
                          0x1p-64f, -0x1p-88f, 0x1p-100f,     0x1p100f,   -0x1p64f, 0x1p63f,
                          kInf,     -kInf,     std::nanf(""), 0x1.fep127f};
    std::mt19937 random(1);
    int64_t finite = 0;
    for (int trial = 0; trial < 200; ++trial) {
      Elements a(DType::bf16, 16 * 32), b(DType::bf16, 16 * 32), c(DType::f32, 16 * 16);
      const auto fill = [&](Elements& x, int64_t items) {
        for (int64_t i = 0; i < items; ++i) {
          const bool is_rare = random() % 32 < static_cast<unsigned>(trial % 8);
          x.set(i, is_rare ? rare[random() % std::size(rare)]
                           : std::ldexp(static_cast<float>(random() % 255) - 127, -trial / 3));
        }
      };
      fill(a, 16 * 32), fill(b, 16 * 32), fill(c, 16 * 16);
      std::vector<float> expected;
      for (int64_t i = 0; i < 16; ++i)
        for (int64_t j = 0; j < 16; ++j) {
          float sums[2] = {};
          for (int64_t k = 0; k < 32; ++k)
            sums[k % 2] = EmulatedTiles::multiply_add(
                static_cast<float>(a.get(i * 32 + k)),
                static_cast<float>(b.get((k / 2) * 32 + 2 * j + k % 2)), sums[k % 2]);
          expected.push_back(EmulatedTiles::add(static_cast<float>(c.get(i * 16 + j)),
                                                EmulatedTiles::add(sums[0], sums[1])));
        }
      EmulatedTiles::load<0>(c.data(), 64);
      EmulatedTiles::load<1>(a.data(), 64);
      EmulatedTiles::load<2>(b.data(), 64);
      EmulatedTiles::dot<0, 1, 2>();
      EmulatedTiles::store<0>(c.data(), 64);
      int64_t wrong = 0;
      for (int64_t i = 0; i < 16 * 16; ++i) {
        const auto got = static_cast<float>(c.get(i)), right = expected[static_cast<size_t>(i)];
        wrong += std::isnan(right) ? !std::isnan(got)
                                   : got != right || std::signbit(got) != std::signbit(right);
        finite += std::isfinite(right);
      }
      CHECK(wrong == 0);
    }
    CHECK(finite > 200 * 16 * 16 / 4);
  });
}

TEST_CASE("emulated tiles refuse what the CPU refuses") {
  std::jthread([] {
    CHECK_THROWS_AS(EmulatedTiles::zero<0>(), std::logic_error);
    TileConfig config;
    config.rows[0] = 17, config.row_bytes[0] = 64;
    CHECK_THROWS_AS(EmulatedTiles::configure(config), std::logic_error);
    config.rows[0] = 16;
    config.rows[1] = 8, config.row_bytes[1] = 64;
    config.rows[2] = 16, config.row_bytes[2] = 64;
    EmulatedTiles::configure(config);
    CHECK_THROWS_AS((EmulatedTiles::dot<0, 1, 2>()), std::logic_error);
  });
}

TEST_CASE(
    "the AMX kernel takes nothing of the thread's tiles for granted and leaves nothing there") {
  std::jthread([] {
    const auto someone_else = [] {
      TileConfig config;
      for (int t = 0; t < 8; ++t) config.rows[t] = 3, config.row_bytes[t] = 12;
      EmulatedTiles::configure(config);
    };
    const auto left_behind = [] {
      try {
        EmulatedTiles::zero<0>();
        return true;
      } catch (const std::logic_error&) {
        return false;
      }
    };
    const int64_t m = 20, n = 32, k = 64;
    Elements a(DType::bf16, m * k), b(DType::bf16, k * n), expected(DType::f32, m * n),
        c(DType::f32, m * n);
    a.fill_random(1), b.fill_random(2);
    const auto run = [&, a = static_cast<const void*>(a.data()),
                      b = static_cast<const void*>(b.data())](Elements& to) {
      kEmulatedAmx.run({.m = m,
                        .n = n,
                        .k = k,
                        .batch = 1,
                        .a = &a,
                        .lda = k,
                        .b = &b,
                        .c = to.data(),
                        .ldc = n,
                        .accumulate = false});
    };
    const auto same = [&] {
      int64_t different = 0;
      for (int64_t i = 0; i < c.count(); ++i) different += c.get(i) != expected.get(i);
      return different == 0;
    };
    run(expected);
    CHECK_FALSE(left_behind());
    someone_else();
    run(c);
    CHECK(same());
    for (int cell = 0; cell < 2; ++cell) {
      someone_else();
      {
        const KernelUse use(kEmulatedAmx);
        run(c), run(c);
        CHECK(left_behind());  // from call to call
      }
      CHECK(same());
      CHECK_FALSE(left_behind());
    }
  });
}

#ifdef __x86_64__
TEST_CASE("the AMX kernel is as careful with the CPU's tiles") {
  if (!test::is_built(Isa::amx)) {
    MESSAGE("skipped: CPU or build has no amx");
    return;
  }
  REQUIRE(amx_record() != nullptr);
  const int64_t m = 20, n = 32, k = 64;
  Elements a(DType::bf16, m * k), b(DType::bf16, k * n), expected(DType::f32, m * n),
      c(DType::f32, m * n);
  a.fill_random(1), b.fill_random(2);
  const void *a_pointer = a.data(), *b_pointer = b.data();
  GemmTile tile{.m = m,
                .n = n,
                .k = k,
                .batch = 1,
                .a = &a_pointer,
                .lda = k,
                .b = &b_pointer,
                .c = expected.data(),
                .ldc = n,
                .accumulate = false};
  kEmulatedAmx.run(tile);
  tile.c = c.data();
  const GemmKernel& kernel = *amx_record();
  TileConfig other;
  for (int t = 0; t < 8; ++t) other.rows[t] = 3, other.row_bytes[t] = 12;
  for (const bool release : {false, true}) {
    for (int call = 0; call < 2; ++call) {
      asm volatile("ldtilecfg %0" ::"m"(other));
      if (release) asm volatile("tilerelease");
      const KernelUse use(kernel);
      kernel.run(tile), kernel.run(tile);
    }
    int64_t different = 0;
    for (int64_t i = 0; i < c.count(); ++i) different += c.get(i) != expected.get(i);
    CHECK(different == 0);
    TileConfig now;
    asm volatile("sttilecfg %0" : "=m"(now));
    CHECK(static_cast<int>(now.palette) == 0);  // released
  }
}
#endif

TEST_CASE("the AMX kernel gives the same bits on the CPU's tiles") {
  if (!test::is_built(Isa::amx)) {
    MESSAGE("skipped: CPU or build has no amx");
    return;
  }
  REQUIRE(amx_record() != nullptr);
  const GemmKernel& real = *amx_record();
  const int64_t k = 96, n = 32;
  for (int64_t m : {1, 15, 16, 17, 32}) {
    Elements a(DType::bf16, m * k), b(DType::bf16, k * n), c(DType::f32, m * n),
        d(DType::f32, m * n);
    a.fill_random(1), b.fill_random(2), c.fill_random(3), d.fill_random(3);
    for (int64_t i = 0; i < a.count(); i += 7)
      a.set(i, std::ldexp(a.get(i), -126));  // denormal results
    for (int64_t i = 0; i < b.count(); i += 5)
      b.set(i, std::ldexp(b.get(i), static_cast<int>(i % 40)));
    b.set(5, std::numeric_limits<double>::quiet_NaN());
    b.set(70, std::numeric_limits<double>::infinity());
    const void *a_pointer = a.data(), *b_pointer = b.data();
    GemmTile tile{.m = m,
                  .n = n,
                  .k = k,
                  .batch = 1,
                  .a = &a_pointer,
                  .lda = k,
                  .b = &b_pointer,
                  .c = c.data(),
                  .ldc = n,
                  .accumulate = true};
    real.run(tile);
    tile.c = d.data();
    kEmulatedAmx.run(tile);
    int64_t different = 0;
    for (int64_t i = 0; i < c.count(); ++i)
      different += std::isnan(c.get(i))
                       ? !std::isnan(d.get(i))
                       : std::bit_cast<uint64_t>(c.get(i)) != std::bit_cast<uint64_t>(d.get(i));
    CHECK(different == 0);
  }
}
