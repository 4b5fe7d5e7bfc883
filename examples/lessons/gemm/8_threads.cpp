// Step 8: the five loops on all threads, with the same bits for any number of them.
#include <algorithm>

#include "loops.h"
#include "quern/tensor/divide.h"
#include "quern/tensor/parallel.h"
#include "quern/tensor/storage.h"

namespace quern::lessons {
namespace {

// [grid]
/// How C is cut into cells. By its shape alone, never by the number of threads.
struct Grid {
  int64_t rows, columns;  // of a cell
  int64_t down, across;   // cells

  template <class T>
  Grid(const Tile<T>& tile, Size size, int64_t mc) {
    constexpr int64_t kCells = 16;  // enough for eight threads to share evenly
    rows = std::min(mc, round_up(ceil_div(size.m, kCells), tile.mr));
    down = ceil_div(size.m, rows);
    columns = round_up(ceil_div(size.n, ceil_div(kCells, down)), tile.nr);
    across = ceil_div(size.n, columns);
  }
};
// [end]

// [loops]
template <class T>
void parallel_loops(const Tile<T>& tile, Size size, Matrix<const T> a, Matrix<const T> b,
                    Matrix<float> c) {
  const auto [mc, nc, kc] = blocks_for(tile);
  const Workspace b_block(kc * nc * int64_t{sizeof(T)});
  T* const packed_b = b_block.as<T>();
  for (int64_t jc = 0; jc < size.n; jc += nc) {
    for (int64_t pc = 0; pc < size.k; pc += kc) {
      const int64_t n = std::min(nc, size.n - jc), k = std::min(kc, size.k - pc);
      const int64_t depth = padded_k(tile, k);
      parallel_for(ceil_div(n, tile.nr), [&](int64_t panel) {
        const int64_t j = panel * tile.nr;
        pack_b(tile, std::min<int64_t>(tile.nr, n - j), k, b.from(pc, jc + j),
               packed_b + j * depth);
      });
      const Grid grid(tile, {size.m, n, k}, mc);
      parallel_for(grid.down * grid.across, [&](int64_t cell) {
        const int64_t i = cell / grid.across * grid.rows, j = cell % grid.across * grid.columns;
        const Size part{std::min(grid.rows, size.m - i), std::min(grid.columns, n - j), k};
        const Workspace a_block(grid.rows * depth * int64_t{sizeof(T)});
        pack_a(tile, part.m, k, a.from(i, pc), a_block.as<T>());
        macro_kernel(tile, part, a_block.as<T>(), packed_b + j * depth, c.from(i, jc + j));
      });
    }
  }
}
// [end]

}  // namespace

void threads_f32(Size size, Matrix<const float> a, Matrix<const float> b, Matrix<float> c) {
  parallel_loops(best_f32_tile(), size, a, b, c);
}

void threads_bf16(Size size, Matrix<const bfloat16> a, Matrix<const bfloat16> b, Matrix<float> c) {
  parallel_loops(best_bf16_tile(), size, a, b, c);
}

}  // namespace quern::lessons
