// The copy kernels as they are described: an item after the other.
#include <cmath>

#include "quern/ops/kernels/accumulator.h"
#include "quern/ops/kernels/activation.h"
#include "quern/ops/kernels/pack/copy_kernel.h"

namespace quern::kernels {
namespace {

template <class T>
void transpose(const void* src, int64_t src_stride, void* dst, int64_t dst_stride, int64_t rows,
               int64_t cols) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < cols; ++j)
      static_cast<T*>(dst)[i * dst_stride + j] = static_cast<const T*>(src)[j * src_stride + i];
}

void interleave16(const void* a, const void* b, int64_t n, void* dst) {
  auto* to = static_cast<uint16_t*>(dst);
  for (int64_t i = 0; i < n; ++i) {
    to[2 * i] = static_cast<const uint16_t*>(a)[i];
    to[2 * i + 1] = static_cast<const uint16_t*>(b)[i];
  }
}

/// What the map makes of v; v itself without a scale.
template <class A>
A mapped(A v, const ChannelMap& map, int64_t channel) {
  if (map.scale == nullptr) return v;
  const auto at = [=](const void* array) { return static_cast<const A*>(array)[channel]; };
  return activated(std::fma(v - at(map.center), at(map.scale), at(map.shift)), map.activation);
}

/// v as terms of bf16, put(term, value) for each.
template <class Put>
void each_term(float v, int terms, Put put) {
  for (int term = 0; term < terms; ++term) {
    const bfloat16 rounded(v);
    put(term, rounded);
    v -= static_cast<float>(rounded);
  }
}

/// `group` rows are interleaved; those that fill up the last group are zeros.
template <class From, class T, int group>
void panels(const PanelCopy& copy) {
  for (int64_t i = 0; i < (copy.rows + group - 1) / group * group; ++i)
    for (int64_t j = 0; j < copy.cols; ++j) {
      const From v =
          i < copy.rows ? static_cast<const From*>(copy.src)[i * copy.src_stride + j] : From{};
      const float y = i < copy.rows ? mapped(static_cast<float>(v), copy.map, j) : 0;
      T* to = static_cast<T*>(copy.dst) + j / copy.width * copy.panel_stride +
              (i / group * copy.pitch + j % copy.width) * group + i % group;
      if constexpr (std::is_same_v<From, T>) *to = copy.map.scale == nullptr ? v : T(y);
      else each_term(y, copy.terms, [&](int term, bfloat16 x) { to[term * copy.term_stride] = x; });
    }
}

/// body(src, dst, channel) of each item.
template <class T, class To, class Body>
void each_item(const MapCopy& m, Body body) {
  for (int64_t i = 0; i < m.rows; ++i)
    for (int64_t j = 0; j < m.cols; ++j)
      body(static_cast<const T*>(m.src)[i * m.src_stride + j],
           static_cast<To*>(m.dst) + i * m.dst_stride + j, m.rows_are_channels ? i : j);
}

template <class T>
void map(const MapCopy& m) {
  each_item<T, T>(m, [&](T v, T* dst, int64_t channel) {
    *dst = T(mapped(static_cast<Accumulator<T>>(v), m.map, channel));
  });
}

void round(const TermCopy& copy) {
  const MapCopy& m = copy.matrix;
  each_item<float, bfloat16>(m, [&](float v, bfloat16* dst, int64_t channel) {
    each_term(mapped(v, m.map, channel), copy.terms,
              [&](int term, bfloat16 x) { dst[term * copy.term_stride] = x; });
  });
}

constexpr CopyKernel kRecords[] = {
    {QUERN_NAMED("copy"), kIsa, transpose<uint16_t>, transpose<uint32_t>, transpose<uint64_t>,
     interleave16, panels<float, float, 1>, panels<bfloat16, bfloat16, 2>,
     panels<float, bfloat16, 2>, round, map<bfloat16>, map<float>, map<double>}};

}  // namespace

QUERN_KERNELS(CopyKernel, copy, kRecords)

}  // namespace quern::kernels
