// The pool kernels on vectors of xsimd along channels, once an instruction set. A window's rows are
// read from the L1 cache by all windows that share them; its state stays in registers, that of
// several vectors, since the loops over a window cost more than what is done with one.
#pragma once
#include "quern/ops/kernels/columns_simd.h"
#include "quern/ops/kernels/pool/pool_taps.h"

namespace quern::kernels {
namespace {

/// bf16 as 16-bit integers of the same order, -0 below +0, NaN of either sign above all.
struct OrderedBf16 {
  using V = xsimd::batch<int16_t>;
  static constexpr int64_t lanes = static_cast<int64_t>(V::size);
  static constexpr int16_t kAboveInfinity = 0x7f;  // so many, then wraps to what is below -inf

  static V least() { return V(INT16_MIN); }  // -inf
  static V load(const bfloat16* p) {
    typename V::register_type bits;
    __builtin_memcpy(&bits, p, sizeof(bits));
    return by_magnitude(bits) - V(kAboveInfinity);
  }
  static void store(bfloat16* p, V v) {
    const V bits = by_magnitude(v + V(kAboveInfinity));
    __builtin_memcpy(static_cast<void*>(p), &bits.data, sizeof(bits.data));
  }

 private:
  /// Sign and magnitude to two's complement and back.
  static V by_magnitude(V v) { return v ^ ((v >> 15) & V(0x7fff)); }
};

template <class T>
struct ChannelPool {
  using V = Vec<T>;
  static constexpr int64_t lanes = kLanes<T>;
  static constexpr int64_t kAhead = 16;  // pixels, whose lines are far apart, to be prefetched
  /// Integers as wide as the lanes: what numbers of taps, kept as floats (exact), become on the way
  /// to and from memory.
  using Whole =
      typename Native<std::conditional_t<sizeof(Wide<T>) == 8, int64_t, int32_t>, lanes>::type;
  using Real = typename Native<Wide<T>, lanes>::type;

  template <class Index>
  static auto packed(V tap) {
    using Packed = typename Native<Index, lanes>::type;
    return __builtin_convertvector(__builtin_convertvector((Real)tap.data, Whole), Packed);
  }
  template <class Index>
  static void store_index(Index* p, V tap, AllLanes) {
    const auto indices = packed<Index>(tap);
    __builtin_memcpy(p, &indices, sizeof(indices));
  }
  template <class Index>
  static void store_index(Index* p, V tap, FirstLanes part) {
#ifdef __AVX512F__
    if constexpr (sizeof(Index) == 1 && lanes == 16)
      return _mm_mask_storeu_epi8(p, lanes_before<T>(part.n), (__m128i)packed<Index>(tap));
#endif
    Index padded[lanes];
    store_index(padded, tap, AllLanes{});
    for (int64_t i = 0; i < part.n; ++i) p[i] = padded[i];
  }
  template <class Index>
  static V load_index(const Index* p, AllLanes) {
    // Bytes by way of shorts: of the whole step GCC 12 makes scalar code, byte by byte.
    using Step =
        typename Native<std::conditional_t<sizeof(Index) == 1, int16_t, Index>, lanes>::type;
    typename Native<Index, lanes>::type packed;
    __builtin_memcpy(&packed, p, sizeof(packed));
    return (typename V::register_type) __builtin_convertvector(
        __builtin_convertvector(__builtin_convertvector(packed, Step), Whole), Real);
  }
  template <class Index>
  static V load_index(const Index* p, FirstLanes part) {
    Index padded[lanes] = {};
#ifdef __AVX512F__
    if constexpr (sizeof(Index) == 1 && lanes == 16) {
      _mm_storeu_si128((__m128i*)padded, _mm_maskz_loadu_epi8(lanes_before<T>(part.n), p));
      return load_index(padded, AllLanes{});
    }
#endif
    for (int64_t i = 0; i < part.n; ++i) padded[i] = p[i];
    return load_index(padded, AllLanes{});
  }

  static V tap(int64_t number) { return V(static_cast<Wide<T>>(number)); }

  /// Index void: without the taps, which only backward asks for.
  template <class Index>
  static void max_forward_as(const Pool& pool, const T* x, int64_t row, T* y, Index* index) {
    constexpr bool indexed = !std::is_void_v<Index>;
    const int64_t channels = pool.channels;
    const PoolRange rows = pool.h.inputs[row];
    for (int64_t ow = 0; ow < pool.w.out; ++ow) {
      const PoolRange columns = pool.w.inputs[ow];
      const int64_t first =
          tap_of(pool.h, rows.begin, row) * pool.w.kernel + tap_of(pool.w, columns.begin, ow);
      each_columns<T>(channels, [&](int64_t c, auto count, auto part) {
        V best[count], best_tap[count];
        unroll<count>([&](int v) {
          best[v] = V(-static_cast<Wide<T>>(__builtin_inf()));
          best_tap[v] = tap(first);
        });
        int64_t number = first;
        for (int64_t h = rows.begin; h < rows.end; h += pool.h.dilation, number += pool.w.kernel) {
          V now = tap(number);
          for (int64_t w = columns.begin; w < columns.end; w += pool.w.dilation) {
            const T* from = x + (h * pool.w.in + w) * channels + c;
            unroll<count>([&](int v) {
              const V value = part.load(from + v * lanes);
              const auto larger = (value > best[v]) | xsimd::isnan(value);
              best[v] = xsimd::select(larger, value, best[v]);
              if constexpr (indexed) best_tap[v] = xsimd::select(larger, now, best_tap[v]);
            });
            if constexpr (indexed) now += V(1);
          }
        }
        unroll<count>([&](int v) {
          const int64_t i = ow * channels + c + v * lanes;
          part.store(y + i, best[v]);
          if constexpr (indexed) store_index(index + i, best_tap[v], part);
        });
      });
    }
  }

  /// Without the taps: twice the lanes and nothing to widen.
  static void max_ordered(const Pool& pool, const bfloat16* x, int64_t row, bfloat16* y) {
    using Ordered = OrderedBf16;
    const int64_t channels = pool.channels;
    const PoolRange rows = pool.h.inputs[row];
    for (int64_t ow = 0; ow < pool.w.out; ++ow) {
      const PoolRange columns = pool.w.inputs[ow];
      const auto vectors = [&](int64_t c, auto count) {
        typename Ordered::V best[count];
        unroll<count>([&](int v) { best[v] = Ordered::least(); });
        for (int64_t h = rows.begin; h < rows.end; h += pool.h.dilation)
          for (int64_t w = columns.begin; w < columns.end; w += pool.w.dilation) {
            const bfloat16* from = x + (h * pool.w.in + w) * channels + c;
            unroll<count>([&](int v) {
              best[v] = xsimd::max(best[v], Ordered::load(from + v * Ordered::lanes));
            });
          }
        unroll<count>(
            [&](int v) { Ordered::store(y + ow * channels + c + v * Ordered::lanes, best[v]); });
      };
      int64_t c = 0;
      for (; c + 2 * Ordered::lanes <= channels; c += 2 * Ordered::lanes)
        vectors(c, std::integral_constant<int, 2>{});
      for (; c < channels; c += Ordered::lanes) vectors(c, std::integral_constant<int, 1>{});
    }
  }

  static void max_values(const Pool& pool, const T* x, int64_t row, T* y) {
    if constexpr (std::is_same_v<T, bfloat16>)
      if (pool.channels % OrderedBf16::lanes == 0) return max_ordered(pool, x, row, y);
    max_forward_as<void>(pool, x, row, y, nullptr);
  }

  template <class Index>
  static void max_forward(const Pool& pool, const T* x, int64_t row, T* y, Index* index) {
    if (index == nullptr) max_values(pool, x, row, y);
    else max_forward_as(pool, x, row, y, index);
  }

  template <class Index>
  static void max_backward(const Pool& pool, const T* dy, const Index* index, int64_t row, T* dx) {
    const int64_t channels = pool.channels;
    const PoolRange rows = pool.h.outputs[row];
    for (int64_t w = 0; w < pool.w.in; ++w) {
      const PoolRange columns = pool.w.outputs[w];
      each_columns<T>(channels, [&](int64_t c, auto count, auto part) {
        V sum[count];
        unroll<count>([&](int v) { sum[v] = V(0); });
        for (int64_t oh = rows.begin; oh < rows.end; ++oh) {
          const int64_t th = tap_of(pool.h, row, oh);
          if (th < 0) continue;
          for (int64_t ow = columns.begin; ow < columns.end; ++ow) {
            const int64_t tw = tap_of(pool.w, w, ow);
            if (tw < 0) continue;
            const int64_t first = (oh * pool.w.out + ow) * channels + c;
            const V number = tap(th * pool.w.kernel + tw);
            unroll<count>([&](int v) {
              const int64_t i = first + v * lanes;
              const auto here = load_index(index + i, part) == number;
              sum[v] += xsimd::select(here, part.load(dy + i), V(0));
            });
          }
        }
        unroll<count>([&](int v) { part.store(dx + w * channels + c + v * lanes, sum[v]); });
      });
    }
  }

  static V divisor(const Pool& pool, int64_t oh, int64_t ow) {
    return V(static_cast<Wide<T>>(pool.h.divisor[oh] * pool.w.divisor[ow]));
  }

  /// sum += the sums of `rows` rows of a window, from x on, one after the other: several, since an
  /// addition takes as long as loading some vectors.
  template <int rows, int count, class Part>
  __attribute__((always_inline)) static void add_rows(const Pool& pool, const T* x, int64_t pixels,
                                                      Part part, V (&sum)[count]) {
    V row_sum[rows * count];
    unroll<rows * count>([&](int v) { row_sum[v] = V(0); });
    for (int64_t w = 0; w < pixels; ++w, x += pool.channels)
      unroll<rows>([&](int h) {
        const T* from = x + h * pool.w.in * pool.channels;
        unroll<count>([&](int v) {
          __builtin_prefetch(from + kAhead * pool.channels + v * lanes, 0, 3);
          row_sum[h * count + v] += part.load(from + v * lanes);
        });
      });
    unroll<rows>([&](int h) { unroll<count>([&](int v) { sum[v] += row_sum[h * count + v]; }); });
  }

  /// A window is summed row by row, then over rows: the error grows with h + w, not with h·w.
  static void avg_forward(const Pool& pool, const T* x, int64_t row, PoolRange channels, T* y) {
    const PoolRange rows = pool.h.inputs[row];
    for (int64_t ow = 0; ow < pool.w.out; ++ow) {
      const PoolRange columns = pool.w.inputs[ow];
      const int64_t pixels = columns.end - columns.begin;
      const V size = divisor(pool, row, ow);
      each_columns<T>(channels.end - channels.begin, [&](int64_t i, auto count, auto part) {
        constexpr int at_once = 4 / count;
        const int64_t c = channels.begin + i;
        const auto at = [&](int64_t h) {
          return x + (h * pool.w.in + columns.begin) * pool.channels + c;
        };
        V sum[count];
        unroll<count>([&](int v) { sum[v] = V(0); });
        int64_t h = rows.begin;
        for (; h + at_once <= rows.end; h += at_once)
          add_rows<at_once>(pool, at(h), pixels, part, sum);
        for (; h < rows.end; ++h) add_rows<1>(pool, at(h), pixels, part, sum);
        unroll<count>([&](int v) {
          part.store(y + ow * pool.channels + c + v * lanes, quotient(sum[v], size));
        });
      });
    }
  }

  static void avg_backward(const Pool& pool, const T* dy, int64_t row, T* dx) {
    const int64_t channels = pool.channels;
    const PoolRange rows = pool.h.outputs[row];
    for (int64_t w = 0; w < pool.w.in; ++w) {
      const PoolRange columns = pool.w.outputs[w];
      each_vector<T>(channels, [&](int64_t c, int, auto part) {
        V sum(0);
        for (int64_t oh = rows.begin; oh < rows.end; ++oh) {
          V row_sum(0);
          for (int64_t ow = columns.begin; ow < columns.end; ++ow)
            row_sum += quotient(part.load(dy + (oh * pool.w.out + ow) * channels + c),
                                divisor(pool, oh, ow));
          sum += row_sum;
        }
        part.store(dx + w * channels + c, sum);
      });
    }
  }
};

template <class T>
constexpr PoolKernel record(const char* name, DType dtype) {
  constexpr int64_t max_taps = sizeof(Wide<T>) == 8 ? INT64_MAX : 1 << 24;  // numbered by floats
  return PoolRecord<ChannelPool<T>, T>::of(name, dtype, 2, INT64_MAX, max_taps);
}

constexpr PoolKernel kRecords[] = {
    record<float>(QUERN_NAMED("pool_f32_nhwc"), DType::f32),
    record<bfloat16>(QUERN_NAMED("pool_bf16_nhwc"), DType::bf16),
    record<double>(QUERN_NAMED("pool_f64_nhwc"), DType::f64),
};

}  // namespace

QUERN_KERNELS(PoolKernel, pool, kRecords)

}  // namespace quern::kernels
