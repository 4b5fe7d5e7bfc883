#include "quern/ops/kernels/image/resample.h"

#include <doctest/doctest.h>

#include <random>
#include <vector>

#include "records.h"

using namespace quern::kernels;

TEST_CASE("every resampling kernel gives the bits of the reference") {
  const ResampleKernel& reference = *table<ResampleKernel>().back();
  std::mt19937 dice(7);
  quern::test::each_runnable(table<ResampleKernel>(), [&](const ResampleKernel& kernel) {
    for (int round = 0; round < 60; ++round) {
      // Every length that leaves a tail of a vector; weights that sum to one or somewhat more.
      const int64_t in = 1 + dice() % 40, out = 1 + round, taps = 1 + dice() % 6;
      std::vector<int64_t> begin, count;
      std::vector<int32_t> weights(static_cast<size_t>(out * taps));
      for (int64_t i = 0; i < out; ++i) {
        begin.push_back(dice() % in);
        count.push_back(1 + dice() % std::min(taps, in - begin[i]));
        for (int64_t k = 0; k < count[i]; ++k)
          weights[i * taps + k] =
              static_cast<int32_t>(((1u << kResampleBits) + dice() % 40000) / count[i]);
      }
      const ResampleAxis axis{out, taps, begin.data(), count.data(), weights.data()};
      std::vector<uint8_t> pixels(3 * in * taps + 1);
      for (uint8_t& value : pixels) value = dice() % 4 == 0 ? 255 : static_cast<uint8_t>(dice());

      for (const bool flip : {false, true}) {
        std::vector<uint8_t> expected(3 * out + 1), got(3 * out + 2, 77);
        reference.along(pixels.data(), axis, flip, expected.data());
        kernel.along(pixels.data(), axis, flip, got.data());
        CHECK(got[3 * out + 1] == 77);
        expected.resize(3 * out), got.resize(3 * out);
        CHECK(got == expected);
      }
      const int64_t values = 3 * in;
      std::vector<uint8_t> expected(values + 1, 77), got(values + 1, 77);
      reference.down(pixels.data(), values, weights.data(), count[0], values, expected.data());
      kernel.down(pixels.data(), values, weights.data(), count[0], values, got.data());
      CHECK(got == expected);
    }
  });
}
