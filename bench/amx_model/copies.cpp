// The copies that pack operands, in place of the library's functions while something is counted.
#include "copies.h"

#include "quern/ops/kernels/pack/matrix.h"
#include "quern/ops/kernels/pack/panels.h"

namespace quern::bench {
namespace {

int64_t touch(const void* at, int64_t items, int64_t bytes, bool write) {
  return core.touch(static_cast<const char*>(at) + items, bytes, write, core.counts.of_packing);
}

/// Panels of bf16 in pairs of rows.
void count(const kernels::PanelCopy& copy) {
  constexpr int64_t kItem = 2;
  for (int64_t i = 0; i < copy.rows; ++i)
    touch(copy.src, i * copy.src_stride * kItem, copy.cols * kItem, false);
  const int64_t panel = (copy.rows + 1) / 2 * 2 * copy.pitch * kItem;
  for (int64_t p = 0; p * copy.width < copy.cols; ++p)
    core.counts.copied_lines += touch(copy.dst, p * copy.panel_stride * kItem, panel, true);
}

}  // namespace
}  // namespace quern::bench

// The linker gives calls of NAME to __wrap_NAME, and calls of __real_NAME to NAME.
#define COPY_MATRIX(prefix) prefix##_ZN5quern7kernels11copy_matrixElPKvllPvlll
#define PACK_PANELS(prefix) \
  prefix##_ZN5quern7kernels11pack_panelsERKNS0_11PanelFormatERKNS0_9PanelCopyE

extern "C" {
decltype(quern::kernels::copy_matrix) COPY_MATRIX(__real_), COPY_MATRIX(__wrap_);
decltype(quern::kernels::pack_panels) PACK_PANELS(__real_), PACK_PANELS(__wrap_);

void COPY_MATRIX(__wrap_)(int64_t item, const void* src, int64_t row_stride, int64_t col_stride,
                          void* dst, int64_t dst_stride, int64_t rows, int64_t cols) {
  using namespace quern::bench;
  if (!counting_copies)
    return COPY_MATRIX(__real_)(item, src, row_stride, col_stride, dst, dst_stride, rows, cols);
  const bool turned = col_stride != 1;
  for (int64_t i = 0; i < (turned ? cols : rows); ++i)
    touch(src, i * (turned ? col_stride : row_stride) * item, (turned ? rows : cols) * item, false);
  int64_t& lines = turned ? core.counts.turned_lines : core.counts.copied_lines;
  for (int64_t i = 0; i < rows; ++i) lines += touch(dst, i * dst_stride * item, cols * item, true);
}

void PACK_PANELS(__wrap_)(const quern::kernels::PanelFormat& format,
                          const quern::kernels::PanelCopy& copy) {
  if (quern::bench::counting_copies) quern::bench::count(copy);
  else PACK_PANELS(__real_)(format, copy);
}
}
