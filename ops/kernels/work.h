// How work is cut into cells, by shape alone.
#pragma once
#include <algorithm>
#include <cstdint>

#include "quern/tensor/divide.h"
#include "quern/tensor/parallel.h"

namespace quern::kernels {

/// Multiplications for which a thread is worth waking.
inline constexpr int64_t kWorthACell = int64_t{1} << 18;

/// Cells that a problem is cut into at least, where its shape allows: enough for eight threads.
inline int64_t wanted_cells(int64_t multiplications) {
  return std::clamp<int64_t>(multiplications / kWorthACell, 1, 16);
}

/// body(0) ... body(n-1), of so many multiplications each, in parallel; small ones several a cell.
template <class Body>
void parallel_pieces(int64_t n, int64_t multiplications, Body body) {
  const int64_t grain = std::max<int64_t>(1, kWorthACell / std::max<int64_t>(1, multiplications));
  parallel_chunks(n, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) body(i);
  });
}

/// Size of the pieces when 0..n is cut into as few as possible of at most `largest`, alike.
constexpr int64_t even_piece(int64_t n, int64_t largest) {
  return ceil_div(n, ceil_div(n, largest));
}

struct Extent {
  int64_t begin, size;
  bool operator==(const Extent&) const = default;
};
/// The i-th of `parts` pieces of 0..n.
constexpr Extent piece(int64_t n, int64_t parts, int64_t i) {
  return {n * i / parts, n * (i + 1) / parts - n * i / parts};
}

}  // namespace quern::kernels
