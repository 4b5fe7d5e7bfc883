// The vector loops under pack.h, a record an instruction set. Seen by files with ISA flags.
#pragma once
#include <cstdint>

#include "quern/tensor/bfloat16.h"
#include "quern/tensor/types.h"

namespace quern::kernels {

/// dst[i][j] = src[j][i] for i < rows, j < cols; src rows are src_stride items apart, dst rows
/// dst_stride.
using Transpose = void(const void* src, int64_t src_stride, void* dst, int64_t dst_stride,
                       int64_t rows, int64_t cols);

struct CopyKernel {
  const char* name;
  Isa isa;
  Transpose *transpose16, *transpose32, *transpose64;  // items of so many bits
  /// dst = a[0], b[0], a[1], b[1], ...
  void (*interleave16)(const void* a, const void* b, int64_t n, void* dst);
  void (*round)(const float* src, int64_t n, bfloat16* dst);
};

extern const CopyKernel conv_copy_avx512, conv_copy_avx2, conv_copy_portable;

}  // namespace quern::kernels
