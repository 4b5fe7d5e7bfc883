// Runs of elements between dtypes and strides: what copies are made of.
#pragma once
#include <cstddef>

#include "quern/tensor/types.h"

namespace quern::detail {

/// dst[i] = src[i] for n dense elements. Between floats: to nearest even. Float to integer: towards
/// zero, what lies outside the integer's range to its nearest end, NaN to 0. Between integers:
/// modulo 2^bits. To bool: is it other than zero?
void convert_run(std::byte* dst, DType to, const std::byte* src, DType from, int64_t n);

/// dst[i·dst_stride] = src[i·src_stride] for n elements of 1, 2, 4 or 8 bytes; strides in elements.
void copy_run(std::byte* dst, int64_t dst_stride, const std::byte* src, int64_t src_stride,
              int64_t n, int64_t itemsize);

/// dst[i·run + k] = src[i·src_stride] for i < n, k < run: each of n elements as many times.
void repeat_run(std::byte* dst, int64_t run, const std::byte* src, int64_t src_stride, int64_t n,
                int64_t itemsize);

/// Copies n rows of `bytes` bytes each, which begin at the strides given, in bytes. Short ones
/// without a call of memcpy each, which would take longer than the copy.
void copy_rows(std::byte* dst, int64_t dst_stride, const std::byte* src, int64_t src_stride,
               int64_t n, int64_t bytes);

/// The same past the caches, if that is possible, from rows in L1 to rows of whole cache lines.
/// Others see them when the parallel_for is over.
void stream_rows(std::byte* dst, int64_t dst_stride, const std::byte* src, int64_t src_stride,
                 int64_t n, int64_t bytes);

/// The same as copy_run for all elements of a rows × columns matrix, transposed:
/// dst[c·dst_stride + r] = src[r·src_stride + c].
void transpose_tile(std::byte* dst, int64_t dst_stride, const std::byte* src, int64_t src_stride,
                    int64_t rows, int64_t columns, int64_t itemsize);

/// Calls f(uint8_t{}), f(uint16_t{}), f(uint32_t{}) or f(uint64_t{}): what moves elements of that
/// size.
template <class F>
void visit_itemsize(int64_t itemsize, F&& f) {
  switch (itemsize) {
    case 1: return f(uint8_t{});
    case 2: return f(uint16_t{});
    case 4: return f(uint32_t{});
    default: return f(uint64_t{});
  }
}

}  // namespace quern::detail
