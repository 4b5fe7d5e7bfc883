// Lookups on vectors, once an instruction set. Rows lie anywhere, so that no hardware prefetcher
// knows the next one: those of the rows some KB further down the list are fetched meanwhile, to L1.
// But the prefetchers take a row whose lines miss L1 one after the other for a stream, and fetch
// what lies behind it, which nobody reads. So lines are asked for from the middle of a row and from
// its start in turn, and are in L1 when they are read.
#pragma once
#include <cstdint>

#include "quern/ops/kernels/lookup/lookup_kernel.h"
#include "quern/ops/kernels/simd.h"

namespace quern::kernels {
namespace {

constexpr int64_t kLine = 64;
constexpr int64_t kAheadBytes = 8192;  // more lines than a core has under way at once

/// So many rows of `bytes` are fetched ahead.
inline int64_t rows_ahead(int64_t bytes) {
  const int64_t rows = kAheadBytes / (bytes > 0 ? bytes : 1);
  return rows < 2 ? 2 : rows > 64 ? 64 : rows;
}

template <bool to_write>
void fetch(const char* row, int64_t bytes) {
  const int64_t half = (bytes + 2 * kLine - 1) / (2 * kLine) * kLine;
  for (int64_t at = 0; at < half; at += kLine) {
    if (at + half < bytes) __builtin_prefetch(row + at + half, to_write, 3);
    __builtin_prefetch(row + at, to_write, 3);
  }
}

/// `vectors` of f32, whatever the elements are, all of them loaded before one is stored: in turns
/// with stores past the caches reads are slower.
template <int vectors, bool streams>
void copy_vectors(char* to, const char* from) {
  Vec<float> v[vectors];
  unroll<vectors>(
      [&](int k) { v[k] = load(reinterpret_cast<const float*>(from) + k * kLanes<float>); });
  unroll<vectors>([&](int k) {
    float* const out = reinterpret_cast<float*>(to) + k * kLanes<float>;
    if constexpr (streams) stream<float>(out, v[k]);
    else store(out, v[k]);
  });
}

template <bool streams>
void copy_row(char* to, const char* from, int64_t bytes) {
  constexpr int64_t step = kLanes<float> * static_cast<int64_t>(sizeof(float));
  int64_t at = 0;
  for (; at + 8 * step <= bytes; at += 8 * step) copy_vectors<8, streams>(to + at, from + at);
  for (; at + step <= bytes; at += step) copy_vectors<1, streams>(to + at, from + at);
  if (at < bytes) __builtin_memcpy(to + at, from + at, static_cast<size_t>(bytes - at));
}

template <bool streams>
void copy_rows_as(const RowCopy& c) {
  const char* from = static_cast<const char*>(c.from);
  char* to = static_cast<char*>(c.to);
  const auto source = [&](int64_t i) {
    return from + (c.from_index ? c.from_index[i] : i) * c.from_stride;
  };
  const auto target = [&](int64_t i) {
    return to + (c.to_index ? c.to_index[i] : i) * c.to_stride;
  };
  const int64_t ahead = rows_ahead(c.bytes), rows = c.n + c.next;
  for (int64_t i = 0; i < c.n; ++i) {
    if (i + ahead < rows) {
      fetch<false>(source(i + ahead), c.bytes);
      if (c.to_index && !streams) fetch<true>(target(i + ahead), c.bytes);
    }
    copy_row<streams>(target(i), source(i), c.bytes);
  }
}

void copy_rows(const RowCopy& c) {
  if (c.stream) copy_rows_as<true>(c);
  else copy_rows_as<false>(c);
}

/// `vectors` of columns from c on, in registers from the first place of a segment to the last.
template <int vectors, class From, class To, class Lanes>
void sum_columns(const SegmentSum& p, int64_t s, int64_t c, Lanes lanes) {
  using Sum = Vec<To>;
  const From* from = static_cast<const From*>(p.from) + c;
  To* to = static_cast<To*>(p.to) + (p.to_index ? p.to_index[s] : s) * p.to_stride + c;
  const Wide<To>* weight = static_cast<const Wide<To>*>(p.weight);
  const int64_t end = p.offsets[s + 1], last = p.offsets[p.segments + p.next];
  const int64_t ahead = rows_ahead(p.width * static_cast<int64_t>(sizeof(From)));
  constexpr int64_t bytes = vectors * kLanes<To> * static_cast<int64_t>(sizeof(From));

  Sum sum[vectors];
  unroll<vectors>([&](int k) { sum[k] = p.add ? Sum(lanes.load(to + k * kLanes<To>)) : Sum(0); });
  for (int64_t j = p.offsets[s]; j < end; ++j) {
    if (p.index && j + ahead < last)
      fetch<false>(reinterpret_cast<const char*>(from + p.index[j + ahead] * p.from_stride), bytes);
    const From* row = from + (p.index ? p.index[j] : j) * p.from_stride;
    unroll<vectors>([&](int k) {
      const Sum x = lanes.load(row + k * kLanes<To>);
      sum[k] = weight ? fused(Sum(weight[j]), x, sum[k]) : sum[k] + x;
    });
  }
  unroll<vectors>([&](int k) { lanes.store(to + k * kLanes<To>, sum[k]); });
}

/// Columns from c on: as many as can be `vectors` at a time, then half as many, and so on.
template <int vectors, class From, class To>
void sum_columns_from(int64_t c, const SegmentSum& p, int64_t s) {
  constexpr int64_t lanes = kLanes<To>;
  for (; c + vectors * lanes <= p.width; c += vectors * lanes)
    sum_columns<vectors, From, To>(p, s, c, AllLanes{});
  if constexpr (vectors > 1) return sum_columns_from<vectors / 2, From, To>(c, p, s);
  if (c < p.width) sum_columns<1, From, To>(p, s, c, FirstLanes{p.width - c});
}

template <class From, class To>
void segment_sum(const SegmentSum& p) {
  constexpr int64_t size = sizeof(To);
  const int64_t ahead = rows_ahead(p.width * size);
  for (int64_t s = 0; s < p.segments; ++s) {
    if (p.add && p.to_index && s + ahead < p.segments + p.next)
      fetch<false>(static_cast<const char*>(p.to) + p.to_index[s + ahead] * p.to_stride * size,
                   p.width * size);
    sum_columns_from<8, From, To>(0, p, s);
  }
}

constexpr RowCopyKernel kRowCopy[] = {{QUERN_NAMED("copy_rows"), kIsa, copy_rows}};
constexpr SegmentSumKernel kSegmentSum[] = {
#define QUERN_SUM(from, From, to, To) \
  {QUERN_NAMED("segment_sum_" #from "_" #to), kIsa, DType::from, DType::to, segment_sum<From, To>},
#include "quern/ops/kernels/lookup/sums.inc"
};

}  // namespace

QUERN_KERNELS(RowCopyKernel, row_copy, kRowCopy)
QUERN_KERNELS(SegmentSumKernel, segment_sum, kSegmentSum)

}  // namespace quern::kernels
