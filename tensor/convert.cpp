#include "quern/tensor/convert.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "quern/tensor/cpu_features.h"
#include "quern/tensor/divide.h"
#include "quern/tensor/dtype.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace quern::detail {
namespace {

// The conversions that training makes all the time: loops that compilers turn into vector code, on
// x86 into that of AVX2, too, since SSE2 can neither widen nor narrow at a stroke, and to round to
// bf16 of AVX-512. The bits are the same.

[[gnu::always_inline]] inline void narrow_all(bfloat16* dst, const float* src, int64_t n) {
  for (int64_t i = 0; i < n; ++i) dst[i] = bfloat16(src[i]);
}
[[gnu::always_inline]] inline void widen_all(float* dst, const bfloat16* src, int64_t n) {
  for (int64_t i = 0; i < n; ++i) dst[i] = src[i];
}

[[gnu::always_inline]] inline void narrow_all(float16* dst, const float* src, int64_t n) {
#ifdef __ARM_NEON
  for (; n >= 4; n -= 4, dst += 4, src += 4)
    vst1_u16(&dst->bits, vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(src))));
#endif
  for (int64_t i = 0; i < n; ++i) dst[i] = float16(src[i]);
}
[[gnu::always_inline]] inline void widen_all(float* dst, const float16* src, int64_t n) {
#ifdef __ARM_NEON
  for (; n >= 4; n -= 4, dst += 4, src += 4)
    vst1q_f32(dst, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(&src->bits))));
#endif
  for (int64_t i = 0; i < n; ++i) dst[i] = src[i];
}

#ifdef __x86_64__
[[gnu::target("avx2")]] void narrow_avx2(bfloat16* dst, const float* src, int64_t n) {
  narrow_all(dst, src, n);
}
[[gnu::target("avx512f,avx512bw,avx512vl")]] void narrow_avx512(bfloat16* dst, const float* src,
                                                                int64_t n) {
  narrow_all(dst, src, n);
}
[[gnu::target("avx2")]] void widen_avx2(float* dst, const bfloat16* src, int64_t n) {
  widen_all(dst, src, n);
}
// x86 has instructions for f16, in all CPUs that have AVX2.
[[gnu::target("avx2,f16c")]] void narrow_avx2(float16* dst, const float* src, int64_t n) {
  for (; n >= 8; n -= 8, dst += 8, src += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(dst),
                     _mm256_cvtps_ph(_mm256_loadu_ps(src), _MM_FROUND_TO_NEAREST_INT));
  narrow_all(dst, src, n);
}
[[gnu::target("avx2,f16c")]] void widen_avx2(float* dst, const float16* src, int64_t n) {
  for (; n >= 8; n -= 8, dst += 8, src += 8)
    _mm256_storeu_ps(dst, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(src))));
  widen_all(dst, src, n);
}
#endif

template <class Half>
void narrow(Half* dst, const float* src, int64_t n) {
#ifdef __x86_64__
  if constexpr (std::is_same_v<Half, bfloat16>)
    if (isa_enabled(Isa::avx512)) return narrow_avx512(dst, src, n);
  if (isa_enabled(Isa::avx2)) return narrow_avx2(dst, src, n);
#endif
  narrow_all(dst, src, n);
}

template <class Half>
void widen(float* dst, const Half* src, int64_t n) {
#ifdef __x86_64__
  if (isa_enabled(Isa::avx2)) return widen_avx2(dst, src, n);
#endif
  widen_all(dst, src, n);
}

// All others go through a buffer of the widest type of their kind, int64_t or double: one loop to
// load and one to store a type, instead of one a pair of types.

template <class Wide, class T>
T from_wide(Wide value) {
  if constexpr (std::is_same_v<T, bool>) {
    return value != 0;
  } else if constexpr (std::is_floating_point_v<Wide> && std::is_integral_v<T>) {
    constexpr auto kLow = static_cast<double>(std::numeric_limits<T>::min());
    constexpr auto kEnd = 2.0 * static_cast<double>(std::numeric_limits<T>::max() / 2 + 1);
    if (value >= kEnd) return std::numeric_limits<T>::max();
    if (value <= kLow) return std::numeric_limits<T>::min();
    return value == value ? static_cast<T>(value) : T{0};
  } else if constexpr (std::is_same_v<T, bfloat16>) {
    return bfloat16(static_cast<double>(value));
  } else if constexpr (std::is_same_v<T, float16>) {
    return float16(static_cast<double>(value));
  } else {
    return static_cast<T>(value);
  }
}

template <class Wide>
void load(Wide* wide, const std::byte* src, DType from, int64_t n) {
  visit_dtype(from, [&]<class T>(std::type_identity<T>) {
    if constexpr (std::is_integral_v<T> == std::is_integral_v<Wide>) {
      const T* values = reinterpret_cast<const T*>(src);
      for (int64_t i = 0; i < n; ++i) wide[i] = static_cast<Wide>(values[i]);
    }
  });
}

template <class Wide>
void store(std::byte* dst, DType to, const Wide* wide, int64_t n) {
  visit_dtype(to, [&]<class T>(std::type_identity<T>) {
    T* values = reinterpret_cast<T*>(dst);
    for (int64_t i = 0; i < n; ++i) values[i] = from_wide<Wide, T>(wide[i]);
  });
}

template <class Wide>
void convert_by(std::byte* dst, DType to, const std::byte* src, DType from, int64_t n) {
  constexpr int64_t kBuffer = 256;
  Wide wide[kBuffer];
  for (int64_t i = 0; i < n; i += kBuffer) {
    const int64_t count = std::min(kBuffer, n - i);
    load(wide, src + i * itemsize(from), from, count);
    store(dst + i * itemsize(to), to, wide, count);
  }
}

/// Rows of at least a Word, whose last Word overlaps the one before.
template <class Word>
[[gnu::always_inline]] inline void copy_words(std::byte* dst, int64_t dst_stride,
                                              const std::byte* src, int64_t src_stride, int64_t n,
                                              int64_t bytes) {
  constexpr int64_t kStep = sizeof(Word);
  for (int64_t i = 0; i < n; ++i, dst += dst_stride, src += src_stride) {
    const int64_t last = bytes - kStep;
    for (int64_t at = 0; at < last; at += kStep) __builtin_memcpy(dst + at, src + at, kStep);
    __builtin_memcpy(dst + last, src + last, kStep);
  }
}
#ifdef __x86_64__
[[gnu::target("avx2")]] void copy_avx2(std::byte* dst, int64_t dst_stride, const std::byte* src,
                                       int64_t src_stride, int64_t n, int64_t bytes) {
  copy_words<__m256i>(dst, dst_stride, src, src_stride, n, bytes);
}
#endif

/// A square whose rows are 16-byte vectors: 4 × 4 of 32 bits, 8 × 8 of 16.
template <class T>
struct Square {
  using Row [[gnu::vector_size(16)]] = T;
  static constexpr int kSide = 16 / sizeof(T);

  /// One half of a and one of b, as a0 b0 a1 b1...
  template <int kHalf, size_t... i>
  static Row interleave(Row a, Row b, std::index_sequence<i...>) {
    return __builtin_shufflevector(a, b, (kHalf * kSide / 2 + i / 2 + i % 2 * kSide)...);
  }

  /// Interleaving rows i and i + side/2 moves one bit of the row's index to the column's: after as
  /// many rounds as the index has bits, rows are columns.
  static void turn(Row (&rows)[kSide]) {
    constexpr auto kLanes = std::make_index_sequence<kSide>();
    Row next[kSide];
    for (int round = 1; round < kSide; round *= 2) {
      for (int i = 0; i < kSide / 2; ++i) {
        next[2 * i] = interleave<0>(rows[i], rows[i + kSide / 2], kLanes);
        next[2 * i + 1] = interleave<1>(rows[i], rows[i + kSide / 2], kLanes);
      }
      std::copy_n(next, kSide, rows);
    }
  }
  static void transpose(T* dst, int64_t dst_stride, const T* src, int64_t src_stride) {
    Row rows[kSide];
    for (int i = 0; i < kSide; ++i) std::memcpy(&rows[i], src + i * src_stride, sizeof(Row));
    turn(rows);
    for (int i = 0; i < kSide; ++i) std::memcpy(dst + i * dst_stride, &rows[i], sizeof(Row));
  }
  /// Of fewer rows, to columns that follow each other: whole vectors are stored, whose ends the
  /// next columns overwrite. How many columns are done.
  static int64_t transpose_few(T* dst, const T* src, int64_t src_stride, int64_t n,
                               int64_t columns) {
    int64_t c = 0;
    for (; (columns - c - kSide) * n >= kSide - n; c += kSide) {
      Row rows[kSide] = {};
      for (int64_t i = 0; i < n; ++i) std::memcpy(&rows[i], src + i * src_stride + c, sizeof(Row));
      turn(rows);
      for (int i = 0; i < kSide; ++i) std::memcpy(dst + (c + i) * n, &rows[i], sizeof(Row));
    }
    return c;
  }
};

}  // namespace

void convert_run(std::byte* dst, DType to, const std::byte* src, DType from, int64_t n) {
  if (to == from) {
    std::memcpy(dst, src, static_cast<size_t>(n * itemsize(to)));
  } else if (to == DType::bf16 && from == DType::f32) {
    narrow(reinterpret_cast<bfloat16*>(dst), reinterpret_cast<const float*>(src), n);
  } else if (to == DType::f32 && from == DType::bf16) {
    widen(reinterpret_cast<float*>(dst), reinterpret_cast<const bfloat16*>(src), n);
  } else if (to == DType::f16 && from == DType::f32) {
    narrow(reinterpret_cast<float16*>(dst), reinterpret_cast<const float*>(src), n);
  } else if (to == DType::f32 && from == DType::f16) {
    widen(reinterpret_cast<float*>(dst), reinterpret_cast<const float16*>(src), n);
  } else if (is_floating(from)) {
    convert_by<double>(dst, to, src, from, n);
  } else {
    convert_by<int64_t>(dst, to, src, from, n);
  }
}

void copy_run(std::byte* dst, int64_t dst_stride, const std::byte* src, int64_t src_stride,
              int64_t n, int64_t itemsize) {
  visit_itemsize(itemsize, [&]<class T>(T) {
    T* to = reinterpret_cast<T*>(dst);
    const T* from = reinterpret_cast<const T*>(src);
    if (dst_stride == 1 && src_stride == 0) {
      // memset of much does not read what it overwrites.
      if (*from == 0) std::memset(to, 0, static_cast<size_t>(n) * sizeof(T));
      else std::fill_n(to, n, *from);
    } else {
      for (int64_t i = 0; i < n; ++i) to[i * dst_stride] = from[i * src_stride];
    }
  });
}

void repeat_run(std::byte* dst, int64_t run, const std::byte* src, int64_t src_stride, int64_t n,
                int64_t itemsize) {
  visit_itemsize(itemsize, [&]<class T>(T) {
    T* to = reinterpret_cast<T*>(dst);
    const T* from = reinterpret_cast<const T*>(src);
    // By whole vectors, what is too much being overwritten by the next value, while there is one.
    constexpr int64_t lanes = 16 / sizeof(T);
    const int64_t spare = round_up(run, lanes) - run, whole = n - ceil_div(spare, run);
    int64_t i = 0;
    if (run <= lanes)
      for (; i < whole; ++i, to += run) std::fill_n(to, lanes, from[i * src_stride]);
    for (; i < whole; ++i, to += run)
      for (int64_t k = 0; k < run; k += lanes) std::fill_n(to + k, lanes, from[i * src_stride]);
    for (; i < n; ++i, to += run) std::fill_n(to, run, from[i * src_stride]);
  });
}

void copy_rows(std::byte* dst, int64_t dst_stride, const std::byte* src, int64_t src_stride,
               int64_t n, int64_t bytes) {
  constexpr int64_t kLong = 512;  // from which a call hardly counts
  if (bytes > kLong) {
    for (int64_t i = 0; i < n; ++i)
      std::memcpy(dst + i * dst_stride, src + i * src_stride, static_cast<size_t>(bytes));
    return;
  }
  using Vector [[gnu::vector_size(16)]] = uint8_t;
#ifdef __x86_64__
  if (bytes >= 32 && isa_enabled(Isa::avx2))
    return copy_avx2(dst, dst_stride, src, src_stride, n, bytes);
#endif
  const auto copy = [&]<class Word>(std::type_identity<Word>) {
    copy_words<Word>(dst, dst_stride, src, src_stride, n, bytes);
  };
  if (bytes >= 16) copy(std::type_identity<Vector>{});
  else if (bytes >= 8) copy(std::type_identity<uint64_t>{});
  else if (bytes >= 4) copy(std::type_identity<uint32_t>{});
  else if (bytes >= 2) copy(std::type_identity<uint16_t>{});
  else copy(std::type_identity<uint8_t>{});
}

void stream_rows(std::byte* dst, int64_t dst_stride, const std::byte* src, int64_t src_stride,
                 int64_t n, int64_t bytes) {
#ifdef __SSE2__
  for (int64_t i = 0; i < n; ++i, dst += dst_stride, src += src_stride)
    for (int64_t at = 0; at < bytes; at += 16)
      _mm_stream_si128(reinterpret_cast<__m128i*>(dst + at),
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(src + at)));
#else
  copy_rows(dst, dst_stride, src, src_stride, n, bytes);
#endif
}

void transpose_tile(std::byte* dst, int64_t dst_stride, const std::byte* src, int64_t src_stride,
                    int64_t rows, int64_t columns, int64_t itemsize) {
  visit_itemsize(itemsize, [&]<class T>(T) {
    T* to = reinterpret_cast<T*>(dst);
    const T* from = reinterpret_cast<const T*>(src);
    constexpr int64_t kSide = Square<T>::kSide;
    if (rows < kSide || columns < kSide) {
      int64_t done = 0;
      if constexpr (kSide <= 4)  // of more, most would be empty
        if (rows < kSide && dst_stride == rows)
          done = Square<T>::transpose_few(to, from, src_stride, rows, columns);
      for (int64_t c = done; c < columns; ++c)
        for (int64_t r = 0; r < rows; ++r) to[c * dst_stride + r] = from[r * src_stride + c];
      return;
    }
    // The last squares may overlap those before.
    for (int64_t begin_c = 0; begin_c < columns; begin_c += kSide) {
      const int64_t c = std::min(begin_c, columns - kSide);
      for (int64_t begin_r = 0; begin_r < rows; begin_r += kSide) {
        const int64_t r = std::min(begin_r, rows - kSide);
        Square<T>::transpose(to + c * dst_stride + r, dst_stride, from + r * src_stride + c,
                             src_stride);
      }
    }
  });
}

}  // namespace quern::detail
