#include "quern/ops/kernels/conv/block_grid.h"

#include <algorithm>
#include <numeric>

#include "quern/ops/kernels/blocking.h"

namespace quern::kernels {

Block BlockGrid::operator[](int64_t i) const {
  const int64_t image = i / row_blocks() * block_images, row = i % row_blocks() * block_rows;
  return {.image = image,
          .images = std::min(block_images, images - image),
          .row = row,
          .rows = std::min(block_rows, rows - row)};
}

bool rows_collide(const GemmKernel& gemm, int64_t stride) {
  const int64_t sets = cache::kWay / std::gcd(cache::kWay, stride * itemsize(gemm.a));
  return gemm.mr > cache::kWays * sets;
}

int64_t without_collisions(const GemmKernel& gemm, int64_t items) {
  const int64_t line = 64 / itemsize(gemm.a);
  while (rows_collide(gemm, items)) items += line;
  return items;
}

ConvProblem linearised(const ConvProblem& problem) {
  ConvProblem p = problem;
  const bool pointwise =
      p.kh == 1 && p.kw == 1 && p.stride_h == 1 && p.stride_w == 1 && p.pad_h == 0 && p.pad_w == 0;
  if (pointwise && p.format == MemoryFormat::channels_last) {
    p.ih = p.oh = p.n * p.ih;
    p.n = 1;
  }
  return p;
}

}  // namespace quern::kernels
