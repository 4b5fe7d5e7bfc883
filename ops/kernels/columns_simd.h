// Channels of an nhwc block, once an instruction set: vectors lie along them, 4 at a time, and what
// is kept of each from pixel to pixel stays in registers.
#pragma once
#include "quern/ops/kernels/simd.h"

namespace quern::kernels {
namespace {

/// body(c, count, lanes): `count` (a constant) vectors at channel c, or a part of one.
template <class T, class F>
void each_columns(int64_t channels, F body) {
  constexpr int64_t lanes = kLanes<T>;
  int64_t c = 0;
  for (; c + 4 * lanes <= channels; c += 4 * lanes)
    body(c, std::integral_constant<int, 4>{}, AllLanes{});
  each_vector<T>(channels - c, [&](int64_t i, int, auto part) {
    body(c + i, std::integral_constant<int, 1>{}, part);
  });
}

/// The first n elements of `count` vectors, or all if they are fewer.
template <class T, size_t count>
void store_columns(const Vec<T> (&v)[count], int64_t n, double* to) {
  constexpr int64_t lanes = kLanes<T>, most = static_cast<int64_t>(count) * lanes;
  Wide<T> all[most];
  unroll<static_cast<int>(count)>([&](int k) { store(all + k * lanes, v[k]); });
  for (int64_t i = 0; i < (n < most ? n : most); ++i) to[i] = all[i];
}

}  // namespace
}  // namespace quern::kernels
