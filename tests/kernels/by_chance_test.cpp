// Every record that rounds by chance against the reference, which must have the very bits.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/records.h"
#include "quern/ops/kernels/round/by_chance.h"
#include "quern/tensor/random.h"

using namespace quern;
using namespace quern::kernels;
using quern::test::Buffer;
using quern::test::each_runnable;

namespace {

/// Of every exponent and both signs, each with fractions of all kinds; and what is special.
std::vector<float> numbers() {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  std::vector<float> all{0.0f, -0.0f, kInf, -kInf, std::nanf(""), -std::nanf("7"), 65504, -65519};
  RandomStream random(1, 0);
  for (uint32_t exponent = 0; exponent < 256; ++exponent)
    for (const uint32_t fraction :
         {0u, 1u, 0x7fffffu, 0x400000u, random.word() >> 9, random.word() >> 9})
      for (const uint32_t sign : {0u, 0x80000000u})
        all.push_back(std::bit_cast<float>(sign | exponent << 23 | fraction));
  return all;
}

std::vector<char> bytes(Buffer& buffer, int64_t n) {
  const char* begin = static_cast<const char*>(buffer.data());
  return {begin, begin + 2 * n};
}

}  // namespace

TEST_CASE("rounding by chance has the reference's bits, wherever in a draw") {
  const std::vector<float> all = numbers();
  const auto many = static_cast<int64_t>(all.size());
  const auto check_all = [&](const ByChanceKernel& kernel, const ByChanceKernel& reference,
                             int64_t first, int64_t from, int64_t n, uint64_t seed,
                             uint64_t stream) {
    CAPTURE(first);
    CAPTURE(n);
    Buffer in(DType::f32, n), got(kernel.to, n), expected(kernel.to, n);
    std::memcpy(in.data(), all.data() + from, static_cast<size_t>(n) * sizeof(float));
    const auto* x = static_cast<const float*>(in.data());
    kernel.run({x, got.data(), first, n, seed, stream});
    reference.run({x, expected.data(), first, n, seed, stream});
    REQUIRE(bytes(got, n) == bytes(expected, n));
    REQUIRE(got.guarded());
  };
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const ByChanceKernel& reference = *[&] {
      for (const ByChanceKernel* k : table<ByChanceKernel>())
        if (k->to == dtype && std::string_view(k->name).ends_with("_reference")) return k;
      throw Error("no reference");
    }();
    const auto fits = [&](const ByChanceKernel& kernel) { return kernel.to == dtype; };
    each_runnable(table<ByChanceKernel>(), fits, [&](const ByChanceKernel& kernel) {
      const uint64_t seed = 0xfedcba9876543210, stream = uint64_t{1} << 63 | 0x123456789;
      for (int64_t first = 0; first < 9; ++first)
        for (const int64_t n : {0, 1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 32, 33, 63, 65, 100})
          check_all(kernel, reference, first, 8 * first, n, seed, stream);
      // Counters and words of more than 32 bits, and where the lower ones run over.
      const int64_t wraps = (int64_t{1} << 34) - 50, far = (int64_t{1} << 62) + 3;
      for (const int64_t first : {int64_t{0}, wraps, far})
        for (uint64_t draw = 0; draw < 5; ++draw)
          check_all(kernel, reference, first, 0, many, seed + (draw << 31), draw << 30);
    });
  }
}

TEST_CASE("dispatch of rounding by chance") {
  test::each_cap({Isa::portable, Isa::avx2, Isa::avx512}, table<ByChanceKernel>(), [](Isa isa) {
    for (const DType to : {DType::bf16, DType::f16})
      CHECK(select_by_chance("op", to).name == fmt::format("by_chance_{}_{}", to, to_string(isa)));
  });
  CHECK_THROWS_AS(select_by_chance("op", DType::f32), Error);
}
