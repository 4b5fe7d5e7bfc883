// Step 7's transforms on vectors of xsimd. With internal linkage, since each file that includes
// this is compiled for another instruction set.
#pragma once
#include <xsimd/xsimd.hpp>

#include "7_transforms.h"

namespace quern::lessons {
namespace {

using Vec = xsimd::batch<float>;
constexpr int64_t kLanes = Vec::size;

template <class V>
V load(const float* from) {
  if constexpr (std::is_same_v<V, float>) return *from;
  else return V::load_unaligned(from);
}
inline void store(float v, float* to) { *to = v; }
inline void store(const Vec& v, float* to) { v.store_unaligned(to); }

// [source]
/// Bᵀ times a column. Points are 0, ±1, ±2 and infinity.
template <class V>
void source_column(const V (&d)[6], V (&v)[6]) {
  const V a = d[4] - V(4.0f) * d[2], b = d[3] - V(4.0f) * d[1];
  const V e = d[4] - d[2], f = V(2.0f) * (d[3] - d[1]);
  v[0] = V(4.0f) * d[0] - V(5.0f) * d[2] + d[4];
  v[1] = a + b, v[2] = a - b;
  v[3] = e + f, v[4] = e - f;
  v[5] = V(4.0f) * d[1] - V(5.0f) * d[3] + d[5];
}
// [end]

/// Both sides, of as many channels as a vector has: columns first, then rows.
template <class V>
void source_of(const float* d, int64_t row, int64_t pixel, float* v, int64_t point) {
  V half[6][6];
  for (int j = 0; j < 6; ++j) {
    V column[6], out[6];
    for (int i = 0; i < 6; ++i) column[i] = load<V>(d + i * row + j * pixel);
    source_column(column, out);
    for (int i = 0; i < 6; ++i) half[i][j] = out[i];
  }
  for (int i = 0; i < 6; ++i) {
    V out[6];
    source_column(half[i], out);
    for (int j = 0; j < 6; ++j) store(out[j], v + (6 * i + j) * point);
  }
}

/// Aᵀ times a column.
template <class V>
void output_column(const V (&m)[6], V (&y)[4]) {
  const V a = m[1] + m[2], b = m[1] - m[2], e = m[3] + m[4], f = m[3] - m[4];
  y[0] = m[0] + a + e;
  y[1] = b + V(2.0f) * f;
  y[2] = a + V(4.0f) * e;
  y[3] = b + V(8.0f) * f + m[5];
}

template <class V>
void output_of(const float* m, int64_t point, int64_t pixel, float* y) {
  V half[4][6];
  for (int j = 0; j < 6; ++j) {
    V column[6], out[4];
    for (int i = 0; i < 6; ++i) column[i] = load<V>(m + (6 * i + j) * point);
    output_column(column, out);
    for (int i = 0; i < 4; ++i) half[i][j] = out[i];
  }
  for (int i = 0; i < 4; ++i) {
    V out[4];
    output_column(half[i], out);
    for (int j = 0; j < 4; ++j) store(out[j], y + (4 * i + j) * pixel);
  }
}

void source(int64_t channels, const float* d, int64_t row, float* v, int64_t point) {
  int64_t c = 0;
  for (; c + kLanes <= channels; c += kLanes) source_of<Vec>(d + c, row, channels, v + c, point);
  for (; c < channels; ++c) source_of<float>(d + c, row, channels, v + c, point);
}

void output(int64_t channels, const float* m, int64_t point, float* y) {
  int64_t c = 0;
  for (; c + kLanes <= channels; c += kLanes) output_of<Vec>(m + c, point, channels, y + c);
  for (; c < channels; ++c) output_of<float>(m + c, point, channels, y + c);
}

}  // namespace
}  // namespace quern::lessons
