// The loops of a CopyKernel that copy a matrix through the map of a batch norm and an activation,
// or in terms of bf16. Included by files with ISA flags, so all of it has internal linkage.
#pragma once
#include "quern/ops/kernels/activation_simd.h"
#include "quern/ops/kernels/pack/copy_kernel.h"
#include "quern/ops/kernels/simd.h"

namespace quern::kernels {
namespace {

/// What maps a vector of channels, or of one.
template <class V, Activation activation>
struct VectorMap {
  V center, scale, shift;
  V operator()(V v) const {
    const V z = normalised(v, center, scale, shift);
    // A NaN stays one: max() gives its second operand, or NaN for either.
    return activation == Activation::relu ? xsimd::max(V(0), z) : activated(z, activation);
  }
};

/// What is left of v once its first term is taken.
Vec<float> remainder(Vec<float> v) { return v - widened<bfloat16>(to_bf16(v)); }

/// Stores a vector, and nothing else.
struct Whole {
  template <class T, class V, class Lanes>
  void operator()(T* to, V v, Lanes lanes) const {
    lanes.store(to, v);
  }
};
/// Stores the terms of a vector.
struct Terms {
  int count;
  int64_t stride;
  template <class Lanes>
  void operator()(bfloat16* to, Vec<float> v, Lanes lanes) const {
    lanes.store(to, v);
    if (count > 1) lanes.store(to + stride, remainder(v));
  }
};

/// The map of the channels from i on, as load() takes what is kept a channel.
template <class T, Activation activation, class Load>
VectorMap<Vec<T>, activation> map_from(const MapCopy& copy, int64_t i, Load load) {
  const auto array = [&](const void* p) { return load(static_cast<const Wide<T>*>(p) + i); };
  return {array(copy.map.center), array(copy.map.scale), array(copy.map.shift)};
}

/// Columns are channels: a cache line of bf16 at a time, so that what maps them stays in registers.
/// Hardware prefetchers see one line a row, and none beyond a page: those of the rows further down
/// are prefetched. (`copy` by value: else stores may alias its strides, which are loaded again
/// after each.)
template <class T, class To, Activation activation, class Put>
void map_columns(const MapCopy copy, Put put) {
  constexpr int64_t lanes = kLanes<T>, kAhead = 16;  // rows
  const auto each_row = [&](int64_t j, auto body) {
    const T* src = static_cast<const T*>(copy.src) + j;
    To* dst = static_cast<To*>(copy.dst) + j;
    for (int64_t i = 0; i < copy.rows; ++i, src += copy.src_stride, dst += copy.dst_stride)
      body(src, dst);
  };
  constexpr AllLanes all;
  const auto whole = [](const Wide<T>* p) { return load(p); };
  int64_t j = 0;
  for (; j + 2 * lanes <= copy.cols; j += 2 * lanes) {
    const auto map = map_from<T, activation>(copy, j, whole),
               next = map_from<T, activation>(copy, j + lanes, whole);
    each_row(j, [&](const T* src, To* dst) {
      const T* const later = src + kAhead * copy.src_stride;
      __builtin_prefetch(later, 0, 3);
      if (sizeof(T) * lanes >= 64) __builtin_prefetch(later + lanes, 0, 3);
      put(dst, map(load(src)), all);
      put(dst + lanes, next(load(src + lanes)), all);
    });
  }
  each_vector<T>(copy.cols - j, [&](int64_t k, int, auto part) {
    const auto map =
        map_from<T, activation>(copy, j + k, [&](const Wide<T>* p) { return part.load(p); });
    each_row(j + k, [&](const T* src, To* dst) { put(dst, map(part.load(src)), part); });
  });
}

/// The same row by row, in the order of memory, for rows that follow each other: what maps a vector
/// is loaded again for each, from L1, which takes less time than their lines take to come.
template <class T, class To, Activation activation, class Put>
void map_rows(const MapCopy copy, Put put) {
  constexpr int64_t kAhead = 4096 / sizeof(T);
  const T* src = static_cast<const T*>(copy.src);
  To* dst = static_cast<To*>(copy.dst);
  for (int64_t i = 0; i < copy.rows; ++i, src += copy.src_stride, dst += copy.dst_stride)
    each_vector<T>(copy.cols, [&](int64_t j, int, auto part) {
      __builtin_prefetch(src + j + kAhead, 0, 3);
      const auto map =
          map_from<T, activation>(copy, j, [&](const Wide<T>* p) { return part.load(p); });
      put(dst + j, map(part.load(src + j)), part);
    });
}

template <class T, class To, Activation activation, class Put>
void map_as(const MapCopy& copy, Put put) {
  if (!copy.rows_are_channels) {
    const bool follow = copy.src_stride == copy.cols && copy.cols > 2 * kLanes<T>;
    return follow ? map_rows<T, To, activation>(copy, put)
                  : map_columns<T, To, activation>(copy, put);
  }
  for (int64_t i = 0; i < copy.rows; ++i) {
    const T* src = static_cast<const T*>(copy.src) + i * copy.src_stride;
    To* dst = static_cast<To*>(copy.dst) + i * copy.dst_stride;
    const auto map = map_from<T, activation>(copy, i, [](const Wide<T>* p) { return Vec<T>(*p); });
    each_vector<T>(copy.cols,
                   [&](int64_t j, int, auto part) { put(dst + j, map(part.load(src + j)), part); });
  }
}

template <class T, class To, class Put>
void map(const MapCopy& copy, Put put) {
  as_constant(copy.map.activation,
              [&](auto activation) { map_as<T, To, activation()>(copy, put); });
}

template <class T>
void map(const MapCopy& copy) {
  map<T, T>(copy, Whole{});
}

void round(const TermCopy& copy) {
  const MapCopy& m = copy.matrix;
  const Terms put{copy.terms, copy.term_stride};
  if (m.map.scale) return map<float, bfloat16>(m, put);
  for (int64_t i = 0; i < m.rows; ++i) {
    const float* src = static_cast<const float*>(m.src) + i * m.src_stride;
    bfloat16* dst = static_cast<bfloat16*>(m.dst) + i * m.dst_stride;
    each_vector<float>(m.cols,
                       [&](int64_t j, int, auto part) { put(dst + j, part.load(src + j), part); });
  }
}

}  // namespace
}  // namespace quern::kernels
