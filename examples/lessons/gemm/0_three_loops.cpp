// Step 0: the definition. Element (i, j) of C is the dot product of row i of A and column j of B.
#include "gemm.h"

namespace quern::lessons {

// [three loops]
void three_loops(Size size, Matrix<const float> a, Matrix<const float> b, Matrix<float> c) {
  for (int64_t i = 0; i < size.m; ++i) {
    for (int64_t j = 0; j < size.n; ++j) {
      float sum = c[i][j];
      for (int64_t p = 0; p < size.k; ++p) sum += a[i][p] * b[p][j];
      c[i][j] = sum;
    }
  }
}
// [end]

}  // namespace quern::lessons
