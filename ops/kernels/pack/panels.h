// Panels, as micro-kernels read B (gemm/gemm_kernel.h) and A by columns: element (p, j) of one lies
// at (p/kr)·nr·kr + j·kr + p%kr.
#pragma once
#include "quern/ops/kernels/pack/copy_kernel.h"

namespace quern::kernels {

struct PanelFormat {
  DType dtype;
  int64_t nr, kr;
};

/// Writes B[i][j] = src[i·row_stride + j·col_stride] for i < k, j < n <= nr into rows row0... of a
/// panel. What it does not write, the caller has zeroed.
void pack_panel_rows(const PanelFormat& format, const void* src, int64_t row_stride,
                     int64_t col_stride, int64_t k, int64_t n, int64_t row0, void* panel);

/// Can pack_panels() make them? In f32 and, in pairs, in bf16.
bool packs_panels(const PanelFormat& format);
/// Cuts a matrix [rows][cols] into panels of `width` columns with room for `pitch`.
void pack_panels(const PanelFormat& format, const PanelCopy& copy);
/// The same of a matrix of f32, as terms of bf16 in pairs.
void round_panels(const PanelCopy& copy);

}  // namespace quern::kernels
