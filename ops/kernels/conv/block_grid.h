// How images are cut into blocks, and what the engines of all passes share beside.
#pragma once
#include "quern/ops/kernels/conv/conv.h"
#include "quern/ops/kernels/conv/source_block.h"
#include "quern/ops/kernels/pack/bf16_terms.h"
#include "quern/ops/kernels/work.h"
#include "quern/tensor/dtype.h"

namespace quern::kernels {

/// The images and rows of a problem, cut into blocks alike.
struct BlockGrid {
  int64_t images, rows;              // of the problem
  int64_t block_images, block_rows;  // of a block; those at the end may be smaller

  int64_t row_blocks() const { return ceil_div(rows, block_rows); }
  int64_t count() const { return ceil_div(images, block_images) * row_blocks(); }
  Block operator[](int64_t i) const;

  /// The largest blocks that take at most `budget` bytes, told the bytes of one image's block of
  /// rows: several images if a whole one fits, else some rows of one.
  template <class Bytes>
  static BlockGrid within(int64_t images, int64_t rows, int64_t budget, Bytes bytes) {
    if (bytes(rows) == 0) return {images, rows, images, rows};
    if (bytes(rows) <= budget)
      return {images, rows, even_piece(images, budget / bytes(rows)), rows};
    int64_t fit = 1;
    while (fit < rows && bytes(fit + 1) <= budget) ++fit;
    return {images, rows, 1, even_piece(rows, fit)};
  }
};

/// Rows of A that the cache keeps in one set if they are this far apart: a micro-kernel reads mr of
/// them at a time, and a first-level set holds eight or twelve.
bool rows_collide(const GemmKernel& gemm, int64_t stride);
/// `items` of A's type, and as few more as make rows so far apart not collide.
int64_t without_collisions(const GemmKernel& gemm, int64_t items);

/// Pixels are independent of where an image ends if the kernel is 1×1, unstrided and unpadded and
/// channels are innermost: the problem as one image of all rows.
ConvProblem linearised(const ConvProblem& problem);

/// f(a tensor's item, an operand's), as types.
template <class F>
void visit_items(const ConvPlan& plan, F f) {
  if (plan.bf16_terms != 0) return f(std::type_identity<float>{}, std::type_identity<bfloat16>{});
  visit_floating("conv2d", plan.problem.dtype,
                 [&]<class T>(std::type_identity<T> item) { f(item, item); });
}

}  // namespace quern::kernels
