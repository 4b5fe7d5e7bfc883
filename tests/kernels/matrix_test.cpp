// What copy_matrix() does beside the copy kernels: transposes to rows that lie pages apart.
#include <doctest/doctest.h>

#include <cstdint>
#include <numeric>
#include <vector>

#include "quern/ops/kernels/blocking.h"
#include "quern/ops/kernels/pack/matrix.h"

using namespace quern;
using namespace quern::kernels;

namespace {

/// Behind each row of dst, and behind the last, nothing is written.
template <class T>
void check_pages_apart(int64_t rows, int64_t cols) {
  constexpr int64_t item = sizeof(T);
  const int64_t apart = (cols * item / cache::kWay + 1) * cache::kWay / item;
  const int64_t src_stride = rows + 3;
  std::vector<T> src(static_cast<size_t>(cols * src_stride)),
      dst(static_cast<size_t>(rows * apart), T{7});
  std::iota(src.begin(), src.end(), T{100});
  std::vector<T> expected = dst;
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < cols; ++j)
      expected[static_cast<size_t>(i * apart + j)] = src[static_cast<size_t>(j * src_stride + i)];
  copy_matrix(item, src.data(), 1, src_stride, dst.data(), apart, rows, cols);
  CAPTURE(item);
  CAPTURE(rows);
  CAPTURE(cols);
  CHECK(dst == expected);
}

}  // namespace

TEST_CASE("Matrices are transposed to rows that lie pages apart") {
  for (int64_t rows : {1, 7, 8, 9, 15, 16, 17, 32, 35})
    for (int64_t cols : {1, 15, 16, 17, 33, 64, 65, 128, 129, 257, 300}) {
      check_pages_apart<uint16_t>(rows, cols);
      check_pages_apart<uint32_t>(rows, cols);
      check_pages_apart<uint64_t>(rows, cols);
    }
}
