// The tile of steps 4 to 7: a batch-reduce GEMM. It sums several products in registers before it
// stores C once, and reads A and B where they lie.
#pragma once
#include <cstdint>

namespace quern::lessons {

// [contract]
/// C[m × nr] = Σ over the batch of A_i[m × k] · B_i[k × nr].
struct Batch {
  int64_t m, k;   // m at most mr
  int64_t count;  // of products
  const float *const *a, *const *b;
  int64_t a_row, a_step;  // element (r, p) of A_i is a[i][r·a_row + p·a_step]
  int64_t b_step;         // row p of B_i begins at b[i] + p·b_step
  float* c;
  int64_t ldc;
};
struct BatchTile {
  int mr, nr;
  void (*run)(const Batch&);
};
// [end]

extern const BatchTile kBatchTileAvx2, kBatchTileAvx512, kBatchTileNeon;

}  // namespace quern::lessons
