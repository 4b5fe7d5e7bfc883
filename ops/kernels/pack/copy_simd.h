// The loops of a CopyKernel on the compiler's vectors. Included by files with ISA flags, so all of
// it has internal linkage.
#pragma once
#include "quern/ops/kernels/pack/map_simd.h"

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

/// A square of side × side. One stage interleaves rows i and i + side/2, which rotates the bits of
/// an item's place (row, column) by one; log2(side) of them exchange row and column.
/// Rows of src from `cols` on are not there, and zero.
template <class T, int side>
void transpose_square(const T* src, int64_t src_stride, T* dst, int64_t dst_stride,
                      int64_t cols = side) {
  using V = Row<T, side>;
  V rows[side], mixed[side];
  for (int i = 0; i < side; ++i) rows[i] = i < cols ? load_row<V>(src + i * src_stride) : V{};
  for (int stage = 1; stage < side; stage *= 2) {
    for (int i = 0; i < side / 2; ++i) {
      mixed[2 * i] = zip_low<side>(rows[i], rows[i + side / 2]);
      mixed[2 * i + 1] = zip_high<side>(rows[i], rows[i + side / 2]);
    }
    for (int i = 0; i < side; ++i) rows[i] = mixed[i];
  }
  for (int i = 0; i < side; ++i) store_row(dst + i * dst_stride, rows[i]);
}

/// Rows of dst narrower than a square and one after the other, the last excepted: what each writes
/// beyond its end, the next one overwrites. How many are done. (One such square takes less time
/// than two of half the side. The weight gradient of 3×3 convolutions ends so.)
template <class T, int side>
int64_t transpose_narrow(const T* src, int64_t src_stride, T* dst, int64_t rows, int64_t cols) {
  int64_t i = 0;
  for (; i + side < rows; i += side)
    transpose_square<T, side>(src + i, src_stride, dst + i * cols, cols, cols);
  return i;
}

/// Squares of `side`; those at the ends overlap their neighbours. What is narrower than a square
/// takes smaller ones.
template <class T, int side>
void transpose_squares(const T* src, int64_t src_stride, T* dst, int64_t dst_stride, int64_t rows,
                       int64_t cols) {
  if constexpr (side < 4) {
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < cols; ++j) dst[i * dst_stride + j] = src[j * src_stride + i];
  } else {
    if (rows < side || cols < side) {
      const int64_t done = dst_stride == cols && cols > side / 2
                               ? transpose_narrow<T, side>(src, src_stride, dst, rows, cols)
                               : 0;
      return transpose_squares<T, side / 2>(src + done, src_stride, dst + done * dst_stride,
                                            dst_stride, rows - done, cols);
    }
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
template <class T>
void transpose(const void* src, int64_t src_stride, void* dst, int64_t dst_stride, int64_t rows,
               int64_t cols) {
  constexpr int lanes = static_cast<int>(xsimd::batch<T>::size);
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

void interleave16(const void* a, const void* b, int64_t n, void* dst) {
  constexpr int lanes = static_cast<int>(xsimd::batch<uint16_t>::size);
  interleave<lanes>(static_cast<const uint16_t*>(a), static_cast<const uint16_t*>(b), n,
                    static_cast<uint16_t*>(dst));
}

/// The first n items from p.
template <class V, class T>
V load_items(const T* p, int64_t n) {
  if (n * sizeof(T) == sizeof(V)) return load_row<V>(p);
  V v{};
  __builtin_memcpy(&v, p, static_cast<size_t>(n) * sizeof(T));
  return v;
}

/// What maps the columns of a matrix, a vector of them at a time; that may reach beyond the last.
template <Activation activation>
class ColumnMap {
  static constexpr int64_t lanes = kLanes<float>;

 public:
  explicit ColumnMap(const PanelCopy& copy)
      : end_(copy.cols),
        arrays_{static_cast<const float*>(copy.map.center),
                static_cast<const float*>(copy.map.scale),
                static_cast<const float*>(copy.map.shift)} {
    for (int k = 0; k < 3; ++k)
      for (int64_t i = end_ < lanes ? lanes - end_ : 0; i < lanes; ++i)
        last_[k][i] = arrays_[k][end_ - lanes + i];
  }
  struct Vector {
    VectorMap<Vec<float>, activation> map;
    Vec<float> operator()(Vec<float> v) const { return map(v); }
    Halves operator()(Halves v) const { return to_bf16(map(widened<bfloat16>(v))); }
  };
  /// What maps the vector from a column on.
  Vector from(int64_t column) const {
    const int64_t beyond = column + lanes - end_;
    const auto array = [&](int k) {
      return load(beyond > 0 ? last_[k] + beyond : arrays_[k] + column);
    };
    return {{array(0), array(1), array(2)}};
  }

 private:
  int64_t end_;
  const float* arrays_[3];         // center, scale and shift
  float last_[3][2 * lanes] = {};  // of the last columns, then 0
};
struct NoMap {
  template <class V>
  V operator()(V v) const {
    return v;
  }
  NoMap from(int64_t) const { return {}; }
};

/// cut(map) with the copy's.
template <class F>
void with_map(const PanelCopy& copy, F cut) {
  if (!copy.map.scale) return cut(NoMap{});
  as_constant(copy.map.activation, [&](auto activation) { cut(ColumnMap<activation()>(copy)); });
}

/// A matrix of From becomes panels of T. cut(column) is asked for each vector of every panel, some
/// rows at a time, so that what maps it stays in registers; then called for those rows, `group` at
/// a time: (place in the matrix, how much of a vector may be read there, and in the last row of the
/// group, place in dst). Vectors run on into the next row where there is one. As many rows are
/// prefetched meanwhile: they are often pages apart, and hardware prefetchers stop at page ends.
/// Fewer where set conflicts in L1 would evict them: where their stride puts all of them in one set
/// or two.
template <class From, class T, class F>
void each_piece(const PanelCopy& copy, int64_t group, F cut) {
  constexpr int64_t lanes = kLanes<float>;
  const bool few_sets = copy.src_stride * static_cast<int64_t>(sizeof(From)) % 2048 == 0;
  const int64_t at_once = few_sets ? 4 : 16;
  const auto some_rows = [&](int64_t begin, int64_t end, auto readable) {
    T* to = static_cast<T*>(copy.dst) + begin * copy.pitch;
    for (int64_t j = 0; j < copy.cols; j += copy.width, to += copy.panel_stride) {
      const int64_t last = j + copy.width < copy.cols ? j + copy.width : copy.cols;
      for (int64_t column = j; column < last; column += lanes) {
        const auto piece = cut(column);
        const From* from = static_cast<const From*>(copy.src) + begin * copy.src_stride + column;
        T* at = to + (column - j) * group;
        for (int64_t i = begin; i < end; i += group) {
          for (int64_t next = at_once; next < at_once + group; ++next)
            __builtin_prefetch(from + next * copy.src_stride);
          piece(from, readable(i, column), readable(i + group - 1, column), at);
          from += group * copy.src_stride, at += group * copy.pitch;
        }
      }
    }
  };
  const auto rows = [&](int64_t begin, int64_t end, auto readable) {
    for (int64_t i = begin; i < end; i += at_once)
      some_rows(i, i + at_once < end ? i + at_once : end, readable);
  };
  // Rows that lie in one place, or overlap: none, or more of the last ones are too near to the end.
  const int64_t last_rows =
      copy.src_stride == 0 ? copy.rows : (copy.src_stride + lanes - 2) / copy.src_stride;
  const int64_t whole = copy.rows - last_rows;
  const int64_t groups = whole > 0 ? whole / group : 0;
  rows(0, groups * group,
       [](int64_t, int64_t) { return std::integral_constant<int64_t, lanes>{}; });
  rows(groups * group, copy.rows, [&](int64_t i, int64_t column) {
    const int64_t left = i < copy.rows ? copy.cols - column : 0;
    return left < lanes ? left : lanes;
  });
}

void panels32(const PanelCopy& copy) {
  using V = Vec<float>;
  with_map(copy, [&](const auto& map) {
    each_piece<float, float>(copy, 1, [&](int64_t column) {
      return [map = map.from(column)](const float* from, auto n, auto, float* to) {
        store(to, map(V(load_items<typename V::register_type>(from, n))));
      };
    });
  });
}

/// A pair is a word whose lower half is of the first row.
void pair_panels16(const PanelCopy& copy) {
  using V = Halves;
  with_map(copy, [&](const auto& map) {
    each_piece<uint16_t, uint16_t>(copy, 2, [&](int64_t column) {
      return [map = map.from(column), next = copy.src_stride](const uint16_t* from, auto n_even,
                                                              auto n_odd, uint16_t* to) {
        const V even = map(load_items<V>(from, n_even));
        const V odd = n_odd > 0 ? map(load_items<V>(from + next, n_odd)) : V{};
        store_row(to, widen(even) | widen(odd) << 16);
      };
    });
  });
}

void round_pair_panels(const PanelCopy& copy) {
  using V = Vec<float>;
  with_map(copy, [&](const auto& map) {
    each_piece<float, uint16_t>(copy, 2, [&](int64_t column) {
      return [map = map.from(column), &copy](const float* from, auto n_even, auto n_odd,
                                             uint16_t* to) {
        const auto load = [&](const float* row, auto n) {
          return n > 0 ? map(V(load_items<typename V::register_type>(row, n))) : V(0);
        };
        V even = load(from, n_even), odd = load(from + copy.src_stride, n_odd);
        for (int term = 0; term < copy.terms; ++term, to += copy.term_stride) {
          if (term > 0) even = remainder(even), odd = remainder(odd);
          store_row(to, widen(to_bf16(even)) | widen(to_bf16(odd)) << 16);
        }
      };
    });
  });
}

constexpr CopyKernel kRecords[] = {{QUERN_NAMED("copy"), kIsa, transpose<uint16_t>,
                                    transpose<uint32_t>, transpose<uint64_t>, interleave16,
                                    panels32, pair_panels16, round_pair_panels, round,
                                    map<bfloat16>, map<float>, map<double>}};

}  // namespace

QUERN_KERNELS(CopyKernel, copy, kRecords)

}  // namespace quern::kernels
