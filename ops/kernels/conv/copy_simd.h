// The loops of a CopyKernel on the compiler's vectors. Included by files with ISA flags, so all of it has
// internal linkage.
#pragma once
#include "quern/ops/kernels/conv/copy_kernel.h"
#include "quern/ops/kernels/simd.h"

namespace quern::kernels {
namespace {

template <class T, int lanes>
using Row = typename Native<T, lanes>::type;

template <class V>
V load_row(const void* p) {
  V v;
  __builtin_memcpy(&v, p, sizeof(v));
  return v;
}
template <class V>
void store_row(void* p, V v) {
  __builtin_memcpy(p, &v, sizeof(v));
}

/// The first halves of a and b, or the last ones, interleaved.
template <int first, int lanes, class V, int... i>
V zip(V a, V b, std::integer_sequence<int, i...>) {
  return __builtin_shufflevector(a, b, (first + i / 2 + i % 2 * lanes)...);
}
template <int lanes, class V>
V zip_low(V a, V b) {
  return zip<0, lanes>(a, b, std::make_integer_sequence<int, lanes>{});
}
template <int lanes, class V>
V zip_high(V a, V b) {
  return zip<lanes / 2, lanes>(a, b, std::make_integer_sequence<int, lanes>{});
}

/// A square of side × side. One stage interleaves rows i and i + side/2, which rotates the bits of an
/// item's place (row, column) by one; log2(side) of them exchange row and column.
template <class T, int side>
void transpose_square(const T* src, int64_t src_stride, T* dst, int64_t dst_stride) {
  using V = Row<T, side>;
  V rows[side], mixed[side];
  for (int i = 0; i < side; ++i) rows[i] = load_row<V>(src + i * src_stride);
  for (int stage = 1; stage < side; stage *= 2) {
    for (int i = 0; i < side / 2; ++i) {
      mixed[2 * i] = zip_low<side>(rows[i], rows[i + side / 2]);
      mixed[2 * i + 1] = zip_high<side>(rows[i], rows[i + side / 2]);
    }
    for (int i = 0; i < side; ++i) rows[i] = mixed[i];
  }
  for (int i = 0; i < side; ++i) store_row(dst + i * dst_stride, rows[i]);
}

/// Squares of `side`; those at the ends overlap their neighbours. What is narrower than a square takes
/// smaller ones.
template <class T, int side>
void transpose_squares(const T* src, int64_t src_stride, T* dst, int64_t dst_stride, int64_t rows,
                       int64_t cols) {
  if constexpr (side < 4) {
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < cols; ++j) dst[i * dst_stride + j] = src[j * src_stride + i];
  } else {
    if (rows < side || cols < side)
      return transpose_squares<T, side / 2>(src, src_stride, dst, dst_stride, rows, cols);
    for (int64_t at_col = 0; at_col < cols; at_col += side) {
      const int64_t j = at_col + side <= cols ? at_col : cols - side;
      for (int64_t at_row = 0; at_row < rows; at_row += side) {
        const int64_t i = at_row + side <= rows ? at_row : rows - side;
        transpose_square<T, side>(src + j * src_stride + i, src_stride, dst + i * dst_stride + j,
                                  dst_stride);
      }
    }
  }
}

/// As many items a side as fill a register, at most 16: there are no more registers.
template <class T, class Arch>
void transpose(const void* src, int64_t src_stride, void* dst, int64_t dst_stride, int64_t rows,
               int64_t cols) {
  constexpr int lanes = static_cast<int>(xsimd::batch<T, Arch>::size);
  transpose_squares<T, (lanes < 16 ? lanes : 16)>(static_cast<const T*>(src), src_stride,
                                                  static_cast<T*>(dst), dst_stride, rows, cols);
}

/// Pieces are often shorter than a register: what is left over takes registers of half the size.
template <int lanes>
void interleave(const uint16_t* a, const uint16_t* b, int64_t n, uint16_t* dst) {
  using V = Row<uint16_t, lanes>;
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const V v = load_row<V>(a + i), w = load_row<V>(b + i);
    store_row(dst + 2 * i, zip_low<lanes>(v, w));
    store_row(dst + 2 * i + lanes, zip_high<lanes>(v, w));
  }
  if constexpr (lanes > 4) {
    if (i < n) interleave<lanes / 2>(a + i, b + i, n - i, dst + 2 * i);
  } else {
    for (; i < n; ++i) dst[2 * i] = a[i], dst[2 * i + 1] = b[i];
  }
}

template <class Arch>
void interleave16(const void* a, const void* b, int64_t n, void* dst) {
  constexpr int lanes = static_cast<int>(xsimd::batch<uint16_t, Arch>::size);
  interleave<lanes>(static_cast<const uint16_t*>(a), static_cast<const uint16_t*>(b), n,
                    static_cast<uint16_t*>(dst));
}

template <int lanes>
void copy_piece(const uint32_t* src, int64_t n, uint32_t* dst) {
  using V = Row<uint32_t, lanes>;
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) store_row(dst + i, load_row<V>(src + i));
  if constexpr (lanes > 4) {
    if (i < n) copy_piece<lanes / 2>(src + i, n - i, dst + i);
  } else {
    for (; i < n; ++i) dst[i] = src[i];
  }
}

/// f(row of the matrix, first column, columns to copy, place in dst) for every piece of every panel;
/// rows step by `group`. All of the room is copied where the matrix reaches so far.
template <class T, class F>
void each_piece(const PanelCopy& copy, int64_t group, F f) {
  auto* dst = static_cast<T*>(copy.dst);
  for (int64_t i = 0; i < copy.rows; i += group) {
    T* to = dst + i * copy.pitch;
    for (int64_t j = 0; j < copy.cols; j += copy.width, to += copy.panel_stride) {
      const int64_t left = copy.cols - j;
      f(static_cast<const T*>(copy.src) + i * copy.src_stride + j, i,
        left >= copy.pitch  ? copy.pitch
        : left < copy.width ? left
                            : copy.width,
        to);
    }
  }
}

template <class Arch>
void panels32(const PanelCopy& copy) {
  constexpr int lanes = static_cast<int>(xsimd::batch<uint32_t, Arch>::size);
  each_piece<uint32_t>(copy, 1, [&](const uint32_t* from, int64_t, int64_t n, uint32_t* to) {
    copy_piece<lanes>(from, n, to);
  });
}

template <class Arch>
void pair_panels16(const PanelCopy& copy) {
  each_piece<uint16_t>(copy, 2, [&](const uint16_t* from, int64_t i, int64_t n, uint16_t* to) {
    if (i + 1 < copy.rows) return interleave16<Arch>(from, from + copy.src_stride, n, to);
    for (int64_t j = 0; j < n; ++j) to[2 * j] = from[j], to[2 * j + 1] = 0;
  });
}

template <class Arch>
void round(const float* src, int64_t n, bfloat16* dst) {
  each_vector<bfloat16, Arch>(
      n, [&](int64_t i, int, auto lanes) { lanes.store(dst + i, lanes.load(src + i)); });
}

/// A NaN stays one: max() gives its second operand, or NaN for either.
template <class V>
V mapped(V v, V scale, V shift) {
  return xsimd::max(V(0), xsimd::fma(v, scale, shift));
}

template <class T, class Arch>
void map(const MapCopy& copy) {
  using V = Vec<T, Arch>;
  const auto* scale = static_cast<const Wide<T>*>(copy.scale);
  const auto* shift = static_cast<const Wide<T>*>(copy.shift);
  for (int64_t i = 0; i < copy.rows; ++i) {
    const T* src = static_cast<const T*>(copy.src) + i * copy.src_stride;
    T* dst = static_cast<T*>(copy.dst) + i * copy.dst_stride;
    if (copy.rows_are_channels) {
      const V s(scale[i]), t(shift[i]);
      each_vector<T, Arch>(copy.cols, [&](int64_t j, int, auto part) {
        part.store(dst + j, mapped(part.load(src + j), s, t));
      });
    } else {
      each_vector<T, Arch>(copy.cols, [&](int64_t j, int, auto part) {
        part.store(dst + j, mapped(part.load(src + j), part.load(scale + j), part.load(shift + j)));
      });
    }
  }
}

template <class Arch>
constexpr CopyKernel copy_kernel(const char* name, Isa isa) {
  return {name,
          isa,
          transpose<uint16_t, Arch>,
          transpose<uint32_t, Arch>,
          transpose<uint64_t, Arch>,
          interleave16<Arch>,
          panels32<Arch>,
          pair_panels16<Arch>,
          round<Arch>,
          map<bfloat16, Arch>,
          map<float, Arch>,
          map<double, Arch>};
}

}  // namespace
}  // namespace quern::kernels
