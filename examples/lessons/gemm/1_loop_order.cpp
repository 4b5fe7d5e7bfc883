// Step 1: the same products in another order, so that the inner loop walks along rows.
#include "gemm.h"

namespace quern::lessons {

// [loop order]
void loop_order(Size size, Matrix<const float> a, Matrix<const float> b, Matrix<float> c) {
  for (int64_t i = 0; i < size.m; ++i) {
    for (int64_t p = 0; p < size.k; ++p) {
      const float x = a[i][p];
      for (int64_t j = 0; j < size.n; ++j) c[i][j] += x * b[p][j];
    }
  }
}
// [end]

}  // namespace quern::lessons
