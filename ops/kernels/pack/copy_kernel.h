// The vector loops under pack.h, a record an instruction set. Seen by files with ISA flags.
#pragma once
#include <cstdint>

#include "quern/ops/kernels/epilogue.h"
#include "quern/ops/kernels/unit.h"
#include "quern/tensor/bfloat16.h"

namespace quern::kernels {

/// dst[i][j] = src[j][i] for i < rows, j < cols; src rows are src_stride items apart, dst rows
/// dst_stride.
using Transpose = void(const void* src, int64_t src_stride, void* dst, int64_t dst_stride,
                       int64_t rows, int64_t cols);

/// A matrix [rows][cols] of f32 or bf16, its rows src_stride items apart, which may be less than
/// cols and 0, to be cut into panels of `width` columns that have room for `pitch`, a multiple of
/// 16; what they hold beyond columns of the matrix is undefined afterwards. Items are mapped as by
/// MapCopy. Where f32 is rounded to bf16, panels are cut for each term, those of term t
/// t·term_stride items behind dst.
struct PanelCopy {
  const void* src;
  int64_t src_stride, rows, cols;
  void* dst;
  int64_t panel_stride, width, pitch;
  ChannelMap map = {};  // of its columns, f32; none without a scale
  int terms = 1;
  int64_t term_stride = 0;
};

/// What a batch norm and an activation do to a matrix [rows][cols] whose columns, or rows, are
/// channels: activation((v - center)·scale + shift), rounded after the difference and, fused, after
/// the rest. dst may be src. What is kept a channel is f32, f64 for f64.
struct MapCopy {
  const void* src;
  int64_t src_stride;
  void* dst;
  int64_t dst_stride, rows, cols;
  ChannelMap map = {};
  bool rows_are_channels = false;
};

/// A matrix of f32, mapped unless scale is null, as so many terms of bf16 (pack/bf16_terms.h):
/// those of term t lie t·term_stride items behind dst.
struct TermCopy {
  MapCopy matrix;
  int terms;
  int64_t term_stride;
};

struct CopyKernel {
  const char* name;  // copy_<isa>
  Isa isa;
  Transpose *transpose16, *transpose32, *transpose64;  // items of so many bits
  /// dst = a[0], b[0], a[1], b[1], ...
  void (*interleave16)(const void* a, const void* b, int64_t n, void* dst);
  /// Item (i, j) goes to j/width·panel_stride + i·pitch + j%width.
  void (*panels32)(const PanelCopy&);
  /// Pairs of rows interleaved: to j/width·panel_stride + (i/2·pitch + j%width)·2 + i%2. The last
  /// of an odd number of rows is paired with zeros.
  void (*pair_panels16)(const PanelCopy&);
  void (*round_pair_panels)(const PanelCopy&);  // the same of f32 as terms of bf16
  void (*round)(const TermCopy&);
  void (*map_bf16)(const MapCopy&);
  void (*map_f32)(const MapCopy&);
  void (*map_f64)(const MapCopy&);
};

}  // namespace quern::kernels
