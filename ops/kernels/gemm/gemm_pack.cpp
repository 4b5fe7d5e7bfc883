#include "quern/ops/kernels/gemm/gemm_pack.h"

#include <algorithm>
#include <cstddef>

#include "quern/ops/kernels/gemm/micro_kernel.h"
#include "quern/ops/kernels/pack/bf16_terms.h"
#include "quern/ops/kernels/pack/matrix.h"
#include "quern/ops/kernels/work.h"
#include "quern/tensor/dtype.h"
#include "quern/tensor/span.h"
#include "quern/tensor/storage.h"

namespace quern::kernels {
namespace {

/// A matrix of B's items [k×n] and where its panels go.
struct Source {
  const std::byte* data;
  int64_t row_stride, col_stride;
  int64_t k, n;
};

/// Some rows of some panels, panel_items apart. k is a multiple of k_multiple, or B's last rows.
void pack_block(const GemmKernel& kernel, const Source& b, std::byte* to, int64_t panel_items) {
  const int64_t item = itemsize(kernel.b), nr = kernel.nr;
  int64_t j = 0;
  if (b.col_stride == 1 && packs_panels(panel_format(kernel)) && nr % 16 == 0 &&
      b.k % kernel.k_multiple == 0) {
    // A row of B across all panels before the next row: hardware prefetchers follow such a
    // sequential read, not one panel's share of a row, a cache line or two before the jump to
    // another page.
    j = b.n / nr * nr;
    if (j > 0)
      pack_panels(panel_format(kernel), {.src = b.data,
                                         .src_stride = b.row_stride,
                                         .rows = b.k,
                                         .cols = j,
                                         .dst = to,
                                         .panel_stride = panel_items,
                                         .width = nr,
                                         .pitch = nr});
  }
  for (; j < b.n; j += nr) {
    const int64_t n = std::min(nr, b.n - j);
    std::byte* panel = to + j / nr * panel_items * item;
    if (n < nr || b.k % kernel.k_multiple != 0)
      std::fill_n(panel, panel_elements(kernel, b.k) * item, std::byte{0});
    pack_panel_rows(panel_format(kernel), b.data + j * b.col_stride * item, b.row_stride,
                    b.col_stride, b.k, n, 0, panel);
  }
}

/// The same of the terms of f32, whose matrices are matrix_items apart.
void pack_terms(const GemmKernel& kernel, const Source& b, int terms, std::byte* to,
                int64_t panel_items, int64_t matrix_items) {
  const int64_t items = b.k * b.n, item = sizeof(bfloat16);
  const Workspace made(terms * items * item);
  const auto* from = reinterpret_cast<const float*>(b.data);
  const bool columns = b.row_stride == 1;  // which are dense, then
  if (columns)
    round_matrix(from, b.col_stride, 1, made.as<bfloat16>(), b.k, b.n, b.k, terms, items);
  else
    round_matrix(from, b.row_stride, b.col_stride, made.as<bfloat16>(), b.n, b.k, b.n, terms,
                 items);
  for (int term = 0; term < terms; ++term)
    pack_block(kernel,
               {made.as<std::byte>() + term * items * item, columns ? 1 : b.n, columns ? b.k : 1,
                b.k, b.n},
               to + term * matrix_items * item, panel_items);
}

/// Copies m rows. The next one is prefetched meanwhile: it is often pages away, and hardware
/// prefetchers stop at page ends. Strides are in bytes.
void copy_rows(const std::byte* from, int64_t stride, int64_t m, int64_t bytes, std::byte* to,
               int64_t to_stride) {
  for (int64_t i = 0; i < m; ++i, from += stride, to += to_stride) {
    for (int64_t p = 0; p < bytes; p += 64) __builtin_prefetch(from + stride + p);
    std::copy_n(from, bytes, to);
  }
}

}  // namespace

void pack_a_rows(const GemmKernel& kernel, const void* a, const GemmOperand& operand, int64_t m,
                 int64_t k, int64_t padded_k, int bf16_terms, void* to, int64_t ld,
                 int64_t term_items) {
  const PartSpan part("pack");
  const int64_t item = itemsize(kernel.a), row = operand.row_stride, column = operand.col_stride;
  auto* rows = static_cast<std::byte*>(to);
  if (bf16_terms != 0)
    round_matrix(static_cast<const float*>(a), row, column, static_cast<bfloat16*>(to), ld, m, k,
                 bf16_terms, term_items);
  else if (column == 1)
    copy_rows(static_cast<const std::byte*>(a), row * item, m, k * item, rows, ld * item);
  else copy_matrix(item, a, row, column, to, ld, m, k);
  for (int term = 0; term < term_copies(bf16_terms); ++term)
    for (int64_t i = 0; i < m; ++i)
      std::fill_n(rows + (term * term_items + i * ld + k) * item, (padded_k - k) * item,
                  std::byte{0});
}

void pack_b_batch(const GemmKernel& kernel, const GemmOperand& b, int64_t batch, int64_t k,
                  int64_t n, void* panels, int bf16_terms) {
  if (k == 0 || n == 0) return;
  const int64_t terms = term_copies(bf16_terms), panel_items = panel_elements(kernel, k);
  // Cells of an eighth of the rows and 16 panels, of all terms together. An element that is copied
  // counts as this many products: memory bounds copies.
  constexpr int64_t kProducts = 16;
  const int64_t rows = round_up(std::clamp<int64_t>(ceil_div(k, 8), 32, 512), kernel.k_multiple),
                columns = std::min<int64_t>(16 / terms * kernel.nr, n);
  const int64_t down = ceil_div(k, rows), across = ceil_div(n, columns);
  const int64_t matrix_items = panel_count(kernel, n) * panel_items;
  const int64_t item = itemsize(kernel.b),
                from_item = itemsize(operand_dtype(kernel.b, bf16_terms));
  parallel_pieces(batch * across * down, kProducts * terms * rows * columns, [&](int64_t cell) {
    const PartSpan part("pack");
    const int64_t matrix = cell / down / across, p = cell % down * rows,
                  j = cell / down % across * columns;
    const int64_t offset = matrix * b.batch_stride + p * b.row_stride + j * b.col_stride;
    const Source block{static_cast<const std::byte*>(b.data) + offset * from_item, b.row_stride,
                       b.col_stride, std::min(rows, k - p), std::min(columns, n - j)};
    std::byte* to =
        static_cast<std::byte*>(panels) +
        (matrix * terms * matrix_items + j / kernel.nr * panel_items + p * kernel.nr) * item;
    if (bf16_terms == 0) pack_block(kernel, block, to, panel_items);
    else pack_terms(kernel, block, bf16_terms, to, panel_items, matrix_items);
  });
}

}  // namespace quern::kernels
