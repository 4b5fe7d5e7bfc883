// The batch-reduce tile on vectors of xsimd, as long as the file is compiled for that includes
// this: kMr rows of kVectors vectors. With internal linkage, since each such file has its own.
#pragma once
#include <xsimd/xsimd.hpp>

#include "4_tile.h"

namespace quern::lessons {
namespace {

using Vec = xsimd::batch<float>;
constexpr int kLanes = Vec::size;

template <int kRows, int kVectors>
void run_rows(const Batch& t) {
  Vec sum[kRows][kVectors];
#pragma GCC unroll 14
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) sum[r][v] = Vec(0.0f);
  // [tile]
  for (int64_t i = 0; i < t.count; ++i) {
    const float *a = t.a[i], *b = t.b[i];
    for (int64_t p = 0; p < t.k; ++p, a += t.a_step, b += t.b_step) {
      Vec row[kVectors];
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v) row[v] = Vec::load_unaligned(b + v * kLanes);
#pragma GCC unroll 14
      for (int r = 0; r < kRows; ++r) {
        const Vec x(a[r * t.a_row]);
#pragma GCC unroll 3
        for (int v = 0; v < kVectors; ++v) sum[r][v] = xsimd::fma(x, row[v], sum[r][v]);
      }
    }
  }
  // [end]
#pragma GCC unroll 14
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) sum[r][v].store_unaligned(t.c + r * t.ldc + v * kLanes);
}

/// The tile of as many rows as there are.
template <int kRows, int kVectors>
void run(const Batch& t) {
  if constexpr (kRows > 1)
    if (t.m < kRows) return run<kRows - 1, kVectors>(t);
  run_rows<kRows, kVectors>(t);
}

template <int kMr, int kVectors>
constexpr BatchTile batch_tile{.mr = kMr, .nr = kVectors* kLanes, .run = run<kMr, kVectors>};

}  // namespace
}  // namespace quern::lessons
