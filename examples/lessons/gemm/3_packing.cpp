// Step 3: blocks of A and B are copied, in the order in which the inner loops read them. The loops
// take the tile as an argument: the steps after this one bring faster tiles and nothing else.
#include <algorithm>

#include "loops.h"
#include "quern/tensor/divide.h"
#include "quern/tensor/storage.h"

namespace quern::lessons {

template <class T>
Blocks blocks_for(const Tile<T>& tile) {
  constexpr int64_t kPanel = 64 << 10;   // bytes of a panel of B
  constexpr int64_t kBlock = 256 << 10;  // bytes of a block of A: beside some panels of B in L2
  const int64_t kc = kPanel / (tile.nr * int64_t{sizeof(T)});
  const int64_t mc = kBlock / (kc * int64_t{sizeof(T)}) / tile.mr * tile.mr;
  return {.mc = mc, .nc = 2048 / tile.nr * tile.nr, .kc = kc};
}

template <class T>
int64_t padded_k(const Tile<T>& tile, int64_t k) {
  return round_up(k, std::max(tile.a_step, tile.b_step));
}

namespace {

/// One panel: element (i, p) of it is at(i, p), for i of 0..used and p of 0..k.
template <class T, class At>
T* pack_panel(int64_t width, int64_t used, int64_t k, int64_t padded_k, int step, T* out, At at) {
  const bool whole = used >= width && k == padded_k;
  for (int64_t p = 0; p < padded_k; p += step) {
    if (whole && step == 1) {
      for (int64_t i = 0; i < width; ++i) *out++ = at(i, p);
      continue;
    }
    for (int64_t i = 0; i < width; ++i)
      for (int64_t q = p; q < p + step; ++q) *out++ = i < used && q < k ? at(i, q) : T{};
  }
  return out;
}

}  // namespace

template <class T>
void pack_a(const Tile<T>& tile, int64_t m, int64_t k, Matrix<const T> a, T* packed) {
  for (int64_t i = 0; i < m; i += tile.mr)
    packed = pack_panel(tile.mr, m - i, k, padded_k(tile, k), tile.a_step, packed,
                        [&](int64_t row, int64_t p) { return a[i + row][p]; });
}

template <class T>
void pack_b(const Tile<T>& tile, int64_t n, int64_t k, Matrix<const T> b, T* packed) {
  for (int64_t j = 0; j < n; j += tile.nr)
    packed = pack_panel(tile.nr, n - j, k, padded_k(tile, k), tile.b_step, packed,
                        [&](int64_t column, int64_t p) { return b[p][j + column]; });
}

namespace {

/// A tile of C, of which C may have only a part.
template <class T>
void run_tile(const Tile<T>& tile, Size size, const T* a, const T* b, Matrix<float> c) {
  if (size.m >= tile.mr && size.n >= tile.nr) return tile.run(size.k, a, b, c.data, c.stride);
  alignas(64) float whole[32 * 32] = {};
  tile.run(size.k, a, b, whole, tile.nr);
  for (int64_t i = 0; i < std::min<int64_t>(tile.mr, size.m); ++i)
    for (int64_t j = 0; j < std::min<int64_t>(tile.nr, size.n); ++j)
      c[i][j] += whole[i * tile.nr + j];
}

}  // namespace

// [macro kernel]
template <class T>
void macro_kernel(const Tile<T>& tile, Size size, const T* packed_a, const T* packed_b,
                  Matrix<float> c) {
  const int64_t k = padded_k(tile, size.k);
  for (int64_t jr = 0; jr < size.n; jr += tile.nr)
    for (int64_t ir = 0; ir < size.m; ir += tile.mr)
      run_tile(tile, {size.m - ir, size.n - jr, k}, packed_a + ir * k, packed_b + jr * k,
               c.from(ir, jr));
}
// [end]

// [five loops]
template <class T>
void five_loops(const Tile<T>& tile, Size size, Matrix<const T> a, Matrix<const T> b,
                Matrix<float> c) {
  const auto [mc, nc, kc] = blocks_for(tile);
  const Workspace a_block(mc * kc * int64_t{sizeof(T)}), b_block(kc * nc * int64_t{sizeof(T)});
  T *const packed_a = a_block.as<T>(), *const packed_b = b_block.as<T>();
  for (int64_t jc = 0; jc < size.n; jc += nc) {
    for (int64_t pc = 0; pc < size.k; pc += kc) {
      const int64_t n = std::min(nc, size.n - jc), k = std::min(kc, size.k - pc);
      pack_b(tile, n, k, b.from(pc, jc), packed_b);
      for (int64_t ic = 0; ic < size.m; ic += mc) {
        const int64_t m = std::min(mc, size.m - ic);
        pack_a(tile, m, k, a.from(ic, pc), packed_a);
        macro_kernel(tile, {m, n, k}, packed_a, packed_b, c.from(ic, jc));
      }
    }
  }
}
// [end]

namespace {

// [tile]
constexpr int kMr = 4, kNr = 16;

/// A row of C at a time, which the compiler keeps in four registers.
void plain_tile(int64_t k, const float* a, const float* b, float* c, int64_t ldc) {
  for (int i = 0; i < kMr; ++i) {
    float sum[kNr] = {};
    for (int64_t p = 0; p < k; ++p)
      for (int j = 0; j < kNr; ++j) sum[j] += a[p * kMr + i] * b[p * kNr + j];
    for (int j = 0; j < kNr; ++j) c[i * ldc + j] += sum[j];
  }
}
// [end]

constexpr Tile<float> kPlainTile{.mr = kMr, .nr = kNr, .a_step = 1, .b_step = 1, .run = plain_tile};

}  // namespace

void packing(Size size, Matrix<const float> a, Matrix<const float> b, Matrix<float> c) {
  five_loops(kPlainTile, size, a, b, c);
}

#define QUERN_LOOPS(T)                                                                 \
  template Blocks blocks_for(const Tile<T>&);                                          \
  template int64_t padded_k(const Tile<T>&, int64_t);                                  \
  template void pack_a(const Tile<T>&, int64_t, int64_t, Matrix<const T>, T*);         \
  template void pack_b(const Tile<T>&, int64_t, int64_t, Matrix<const T>, T*);         \
  template void macro_kernel(const Tile<T>&, Size, const T*, const T*, Matrix<float>); \
  template void five_loops(const Tile<T>&, Size, Matrix<const T>, Matrix<const T>, Matrix<float>);
QUERN_LOOPS(float)
QUERN_LOOPS(bfloat16)

}  // namespace quern::lessons
