// The f32 and bf16 kernels on vectors of xsimd: one source, compiled once an instruction set. An
// element's sum does not depend on how many rows and columns are summed beside it, but for a column
// that comes alone.
#pragma once
#include "quern/ops/kernels/gemm/direct_kernel.h"
#include "quern/ops/kernels/simd.h"

namespace quern::kernels {
namespace {

/// Rows of C that are summed at once beside `vectors` of columns: the sums, a row of B and an
/// element of A fill the registers.
constexpr int rows_beside(int vectors) {
#if defined(__AVX512F__) || defined(__ARM_NEON)
  return vectors == 4 ? 4 : 8;
#else
  return vectors == 1 ? 8 : 8 / vectors;
#endif
}

inline Vec<float> broadcast(const float* p) { return Vec<float>(*p); }
inline Vec<float> broadcast(const bfloat16* p) {
  float value;
  widen_one(p, &value);
  return Vec<float>(value);
}

/// C from row i and column j: `rows` times `vectors`. A is of S, B of T.
template <class S, class T, int rows, int vectors, class Lanes>
void tile(const Direct& d, int64_t i, int64_t j, Lanes lanes) {
  using F = Vec<float>;
  constexpr int64_t width = kLanes<T>;
  const S* a = static_cast<const S*>(d.a) + i * d.a_row;
  const T* b = static_cast<const T*>(d.b) + j;
  F sum[rows][vectors];
  unroll<rows>([&](int r) { unroll<vectors>([&](int v) { sum[r][v] = F(0.0f); }); });
  for (int64_t p = 0; p < d.k; ++p, a += d.a_col, b += d.b_row) {
    F row[vectors];
    unroll<vectors>([&](int v) {
      row[v] = lanes.load(b + v * width);
      if constexpr (vectors == 4) __builtin_prefetch(b + (v + vectors) * width);  // the next tile's
    });
    unroll<rows>([&](int r) {
      const F factor = broadcast(a + r * d.a_row);
      unroll<vectors>([&](int v) { sum[r][v] = fused(factor, row[v], sum[r][v]); });
    });
  }
  const auto put = [&](auto* c) __attribute__((always_inline)) {
    unroll<rows>([&](int r) {
      unroll<vectors>([&](int v) { lanes.store(c + r * d.c_row + v * width, sum[r][v]); });
    });
  };
#ifdef __AVX512BF16__  // elsewhere to round takes code so long that GCC inlines less of all here
  if constexpr (!std::is_same_v<T, float>)
    if (d.rounded != nullptr) return put(static_cast<T*>(d.rounded) + i * d.c_row + j);
#endif
  put(d.c + i * d.c_row + j);
}

/// f(count, i), a constant number of rows or columns from i on: `most` at a time, then 2, then the
/// last.
template <int most, class F>
void each_some(int64_t m, F f) {
  int64_t i = 0;
  for (; i + most <= m; i += most) f(std::integral_constant<int, most>{}, i);
  for (; i + 2 <= m; i += 2) f(std::integral_constant<int, 2>{}, i);
  if (i < m) f(std::integral_constant<int, 1>{}, i);
}
/// tile(rows, vectors, i, j, lanes) for all of C.
template <class T, class F>
void each_tile(const Direct& d, F tile) {
  const auto strip = [&]<class Count, class Lanes>(int64_t j, Count vectors, Lanes lanes) {
    each_some<rows_beside(Count::value)>(
        d.m, [&](auto rows, int64_t i) { tile(rows, vectors, i, j, lanes); });
  };
  constexpr int64_t lanes = kLanes<T>;
  int64_t j = 0;
  for (; j + 4 * lanes <= d.n; j += 4 * lanes)
    strip(j, std::integral_constant<int, 4>{}, AllLanes{});
  for (; j + 2 * lanes <= d.n; j += 2 * lanes)
    strip(j, std::integral_constant<int, 2>{}, AllLanes{});
  each_vector<T>(d.n - j, [&](int64_t c, int, auto part) {
    strip(j + c, std::integral_constant<int, 1>{}, part);
  });
}

template <class S, class T>
void tiles(const Direct& d) {
  each_tile<T>(d, [&](auto rows, auto vectors, int64_t i, int64_t j, auto lanes) {
    tile<S, T, rows(), vectors()>(d, i, j, lanes);
  });
}

/// Elements of an A that is copied first, since they are read one by one for every strip of B.
constexpr int64_t kSmall = 4096;

/// A small A of bf16 is widened first.
template <class T>
void rows(const Direct& d) {
  if (std::is_same_v<T, float> || d.m * d.k > kSmall || d.m == 1) return tiles<T, T>(d);
  float wide[kSmall];
  const T* a = static_cast<const T*>(d.a);
  for (int64_t i = 0; i < d.m; ++i) {
    const T* from = a + i * d.a_row;
    float* to = wide + i * d.k;
    if (d.a_col == 1)
      each_vector<T>(
          d.k, [&](int64_t p, int, auto lanes) { lanes.store(to + p, lanes.load(from + p)); });
    else
      for (int64_t p = 0; p < d.k; ++p) to[p] = broadcast(from + p * d.a_col).get(0);
  }
  Direct widened = d;
  widened.a = wide, widened.a_row = d.k, widened.a_col = 1;
  tiles<float, T>(widened);
}

#ifdef __AVX512BF16__
/// A tile by products of two bf16 at a time: two rows of B are interleaved for all rows of A, in
/// which the two are neighbours or a_col apart.
template <bool neighbours, int rows, int vectors, class Lanes>
void pair_tile(const Direct& d, int64_t i, int64_t j, Lanes lanes) {
  using F = Vec<float>;
  using Bits = Native<uint32_t, kLanes<float>>::type;
  constexpr int64_t width = kLanes<float>;
  const bfloat16* a = static_cast<const bfloat16*>(d.a) + i * d.a_row;
  const bfloat16* b = static_cast<const bfloat16*>(d.b) + j;
  F sum[rows][vectors];
  unroll<rows>([&](int r) { unroll<vectors>([&](int v) { sum[r][v] = F(0.0f); }); });
  const auto add_products = [&](auto both) __attribute__((always_inline)) {
    Bits row[vectors];
    unroll<vectors>([&](int v) {
      row[v] = (Bits)lanes.load(b + v * width).data >> 16;
      if constexpr (both()) row[v] |= (Bits)lanes.load(b + d.b_row + v * width).data;
      if constexpr (vectors == 4) {  // the next tile's
        __builtin_prefetch(b + (v + vectors) * width);
        if constexpr (both()) __builtin_prefetch(b + d.b_row + (v + vectors) * width);
      }
    });
    unroll<rows>([&](int r) {
      const bfloat16* at = a + r * d.a_row;
      uint16_t first, second = 0;
      __builtin_memcpy(&first, at, sizeof(first));
      if constexpr (both()) __builtin_memcpy(&second, at + (neighbours ? 1 : d.a_col), 2);
      const __m512i pair = _mm512_set1_epi32(static_cast<int>(uint32_t{second} << 16 | first));
      unroll<vectors>([&](int v) {
        sum[r][v] = _mm512_dpbf16_ps(sum[r][v].data, (__m512bh)pair, (__m512bh)row[v]);
      });
    });
  };
  for (int64_t p = 0; p + 2 <= d.k; p += 2, a += 2 * d.a_col, b += 2 * d.b_row)
    add_products(std::true_type{});
  if (d.k % 2 != 0) add_products(std::false_type{});
  const auto put = [&](auto* c) __attribute__((always_inline)) {
    unroll<rows>([&](int r) {
      unroll<vectors>([&](int v) { lanes.store(c + r * d.c_row + v * width, sum[r][v]); });
    });
  };
  if (d.rounded != nullptr) return put(static_cast<bfloat16*>(d.rounded) + i * d.c_row + j);
  put(d.c + i * d.c_row + j);
}

template <bool neighbours>
void pair_tiles(const Direct& d) {
  each_tile<bfloat16>(d, [&](auto rows, auto vectors, int64_t i, int64_t j, auto lanes) {
    pair_tile<neighbours, rows(), vectors()>(d, i, j, lanes);
  });
}

/// A small A by columns is transposed first. Of one step there are no pairs.
void rows_by_pairs(const Direct& d) {
  if (d.k == 1) return rows<bfloat16>(d);
  if (d.a_col == 1) return pair_tiles<true>(d);
  if (d.m * d.k > kSmall || d.m == 1) return pair_tiles<false>(d);
  bfloat16 copy[kSmall];
  for (int64_t i = 0; i < d.m; ++i)
    for (int64_t p = 0; p < d.k; ++p)
      copy[i * d.k + p] = static_cast<const bfloat16*>(d.a)[i * d.a_row + p * d.a_col];
  Direct dense = d;
  dense.a = copy, dense.a_row = d.k, dense.a_col = 1;
  pair_tiles<true>(dense);
}
#endif

/// Each in four sums, so that additions need not wait for each other.
template <class T, int rows>
void dots_of_column(const Direct& d, int64_t i, int64_t j) {
  using F = Vec<float>;
  const T* a = static_cast<const T*>(d.a) + i * d.a_row;
  const T* b = static_cast<const T*>(d.b) + j * d.b_col;
  F sum[rows][4];
  unroll<rows>([&](int r) { unroll<4>([&](int s) { sum[r][s] = F(0.0f); }); });
  each_vector<T, 4>(d.k, [&](int64_t p, int s, auto lanes) {
    const F factor = lanes.load(b + p);
    unroll<rows>(
        [&](int r) { sum[r][s] = fused(lanes.load(a + r * d.a_row + p), factor, sum[r][s]); });
  });
  unroll<rows>([&](int r) {
    d.c[(i + r) * d.c_row + j * d.c_col] =
        xsimd::hadd((sum[r][0] + sum[r][1]) + (sum[r][2] + sum[r][3]));
  });
}

#ifdef __AVX512BF16__
/// The same by products of two bf16 at a time.
template <int rows, int columns>
void dots_of_pairs(const Direct& d, int64_t i, int64_t j) {
  using F = Vec<float>;
  constexpr int64_t width = 2 * kLanes<float>;
  const bfloat16* a = static_cast<const bfloat16*>(d.a) + i * d.a_row;
  const bfloat16* b = static_cast<const bfloat16*>(d.b) + j * d.b_col;
  F sum[rows][columns];
  unroll<rows>([&](int r) { unroll<columns>([&](int c) { sum[r][c] = F(0.0f); }); });
  for (int64_t p = 0; p < d.k; p += width) {
    const int64_t left = d.k - p;
    const __mmask32 some = left < width ? (1u << left) - 1 : ~0u;
    __m512i row[rows];
    unroll<rows>([&](int r) { row[r] = _mm512_maskz_loadu_epi16(some, a + r * d.a_row + p); });
    unroll<columns>([&](int c) {
      const __m512i factor = _mm512_maskz_loadu_epi16(some, b + c * d.b_col + p);
      unroll<rows>([&](int r) {
        sum[r][c] = _mm512_dpbf16_ps(sum[r][c].data, (__m512bh)row[r], (__m512bh)factor);
      });
    });
  }
  unroll<rows>([&](int r) __attribute__((always_inline)) {
    unroll<columns>([&](int c) __attribute__((always_inline)) {
      d.c[(i + r) * d.c_row + (j + c) * d.c_col] = xsimd::hadd(sum[r][c]);
    });
  });
}
#endif

/// Of rows from i on with columns from j on, each in one sum. (All in one function: else sums would
/// be in memory.)
template <class T, int rows, int columns>
void dots_of(const Direct& d, int64_t i, int64_t j) {
  using F = Vec<float>;
#ifdef __AVX512BF16__
  if constexpr (std::is_same_v<T, bfloat16>) return dots_of_pairs<rows, columns>(d, i, j);
#endif
  if constexpr (columns == 1) return dots_of_column<T, rows>(d, i, j);
  const T* a = static_cast<const T*>(d.a) + i * d.a_row;
  const T* b = static_cast<const T*>(d.b) + j * d.b_col;
  F sum[rows][columns];
  unroll<rows>([&](int r) { unroll<columns>([&](int c) { sum[r][c] = F(0.0f); }); });
  each_vector<T>(d.k, [&](int64_t p, int, auto lanes) {
    F row[rows];
    unroll<rows>([&](int r) __attribute__((always_inline)) {
      row[r] = lanes.load(a + r * d.a_row + p);
      if constexpr (columns == 8)
        __builtin_prefetch(a + (rows + r) * d.a_row + p);  // the next ones
    });
    unroll<columns>([&](int c) __attribute__((always_inline)) {
      const F factor = lanes.load(b + c * d.b_col + p);
      unroll<rows>([&](int r) __attribute__((always_inline)) {
        sum[r][c] = fused(row[r], factor, sum[r][c]);
      });
    });
  });
  unroll<rows>([&](int r) __attribute__((always_inline)) {
    unroll<columns>([&](int c) __attribute__((always_inline)) {
      d.c[(i + r) * d.c_row + (j + c) * d.c_col] = xsimd::hadd(sum[r][c]);
    });
  });
}

/// Eight columns beside three rows where there are 32 registers, so that A is read once.
template <class T>
void dots(const Direct& d) {
  int64_t j = 0;
#if defined(__AVX512F__) || defined(__ARM_NEON)
  for (; j + 8 <= d.n; j += 8)
    each_some<3>(d.m, [&](auto rows, int64_t i) { dots_of<T, rows(), 8>(d, i, j); });
#endif
  each_some<4>(d.n - j, [&](auto columns, int64_t c) {
    each_some<rows_beside(4)>(
        d.m, [&](auto rows, int64_t i) { dots_of<T, rows(), columns()>(d, i, j + c); });
  });
}

constexpr DirectKernel kRecords[] = {
#ifdef __AVX512BF16__
    {QUERN_NAMED("direct_bf16"), kIsa, DType::bf16, rows_by_pairs, dots<bfloat16>, true},
#else
    {QUERN_NAMED("direct_f32"), kIsa, DType::f32, rows<float>, dots<float>},
    {QUERN_NAMED("direct_bf16"), kIsa, DType::bf16, rows<bfloat16>, dots<bfloat16>},
#endif
};

}  // namespace

QUERN_KERNELS(DirectKernel, direct, kRecords)

}  // namespace quern::kernels
