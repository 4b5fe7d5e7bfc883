#include "quern/ops/kernels/gemm/gemm.h"

#include <algorithm>
#include <cstddef>
#include <optional>

#include "quern/ops/kernels/gemm/gemm_registry.h"
#include "quern/tensor/dtype.h"
#include "quern/tensor/parallel.h"
#include "quern/tensor/storage.h"

namespace quern::kernels {
namespace {

constexpr int64_t ceil_div(int64_t value, int64_t by) { return (value + by - 1) / by; }
constexpr int64_t round_up(int64_t value, int64_t to) { return ceil_div(value, to) * to; }

const std::byte* at(const void* data, int64_t elements, int64_t item) {
  return static_cast<const std::byte*>(data) + elements * item;
}
std::byte* at(void* data, int64_t elements, int64_t item) {
  return static_cast<std::byte*>(data) + elements * item;
}

/// parallel_for, with so many cells a thread at a time that one is worth waking for: `work` is the
/// multiplications, or copied elements, of a cell.
template <class F>
void parallel_cells(int64_t cells, int64_t work, F&& body) {
  constexpr int64_t kWork = 1 << 16;
  parallel_chunks(cells, kWork / std::clamp<int64_t>(work, 1, kWork),
                  [&](int64_t begin, int64_t end) {
                    for (int64_t cell = begin; cell < end; ++cell) body(cell);
                  });
}

/// How a problem is cut, by its shape alone. A cell, mc×nc of C, is one thread's work; k goes in
/// blocks of kc, so that a panel of B (kc·nr elements) stays in L1 while the tiles of a cell's rows
/// go by, and the cell's rows of A (mc·kc) stay in L2 while its panels do.
struct Blocks {
  int64_t mc, nc, kc;
  int64_t rows, columns, depths;  // counts of them

  Blocks(const GemmKernel& kernel, const GemmProblem& p) {
    constexpr int64_t kDepthBytes = 1024;  // of a row of a block: 256 f32 or 512 bf16
    constexpr int64_t kCells = 64;  // enough for tens of threads, where the shape has as many
    const int64_t k = padded_k(kernel, p.k);
    depths = std::max<int64_t>(1, ceil_div(k * itemsize(kernel.a), kDepthBytes));
    kc = round_up(ceil_div(k, depths), kernel.k_multiple);
    depths = kc == 0 ? 0 : ceil_div(k, kc);

    int64_t tiles_m = 128 / kernel.mr, tiles_n = 256 / kernel.nr;
    const auto cells = [&] {
      return p.batch * ceil_div(p.m, tiles_m * kernel.mr) * ceil_div(p.n, tiles_n * kernel.nr);
    };
    while (cells() < kCells && tiles_m * tiles_n > 8) (tiles_m > tiles_n ? tiles_m : tiles_n) /= 2;
    rows = ceil_div(p.m, tiles_m * kernel.mr);
    mc = round_up(ceil_div(p.m, rows), kernel.mr);
    rows = ceil_div(p.m, mc);
    columns = ceil_div(p.n, tiles_n * kernel.nr);
    nc = round_up(ceil_div(p.n, columns), kernel.nr);
    columns = ceil_div(p.n, nc);
  }
};

/// Whether tiles may read A where it lies: rows dense, whole multiples of k, and not so far apart
/// that all rows of a tile fall into the same few sets of L1 (a set repeats every 4 KiB).
bool usable_in_place(const GemmKernel& kernel, const GemmProblem& p) {
  if (p.a.col_stride != 1 || p.k % kernel.k_multiple != 0) return false;
  return p.m <= 4 || p.a.row_stride * itemsize(kernel.a) % 2048 != 0;
}

/// Copies A[m×k] into dense rows of `ld`, zero from k to ld.
template <class T>
void pack_a(const T* a, int64_t row_stride, int64_t col_stride, int64_t m, int64_t k, int64_t ld,
            T* to) {
  constexpr int64_t kBlock = 16;  // of rows, so that a transposed A is read by whole cache lines
  for (int64_t first = 0; first < m; first += kBlock) {
    const int64_t last = std::min(m, first + kBlock);
    if (col_stride == 1) {
      for (int64_t i = first; i < last; ++i) std::copy_n(a + i * row_stride, k, to + i * ld);
    } else {
      for (int64_t p = 0; p < k; ++p)
        for (int64_t i = first; i < last; ++i) to[i * ld + p] = a[i * row_stride + p * col_stride];
    }
    for (int64_t i = first; i < last; ++i) std::fill(to + i * ld + k, to + (i + 1) * ld, T{});
  }
}

/// One row of C from its sums: out[j] (+)= sum[j] + bias[j], rounded once.
template <class Out, class Acc>
void finish_row(Out* out, const Acc* sum, const Acc* bias, int64_t n, bool accumulate) {
  for (int64_t j = 0; j < n; ++j) {
    Acc value = sum[j];
    if (bias != nullptr) value += bias[j];
    if (accumulate) value += static_cast<Acc>(out[j]);
    out[j] = static_cast<Out>(value);
  }
}

/// Sums go to C as tiles make them, unless something remains to be done with them.
bool writes_directly(const GemmKernel& kernel, const GemmProblem& p) {
  return p.c_dtype == kernel.c && p.bias == nullptr;
}

std::byte* c_at(const GemmProblem& p, int64_t batch, int64_t i, int64_t j) {
  return at(p.c, batch * p.c_batch_stride + i * p.c_row_stride + j, itemsize(p.c_dtype));
}

/// C[m×n] at row i and column j of a product from its sums, rows ld apart.
void finish(const GemmKernel& kernel, const GemmProblem& p, int64_t batch, int64_t i, int64_t j,
            int64_t m, int64_t n, const void* sums, int64_t ld) {
  const auto rows = [&]<class Out, class Acc>(std::type_identity<Out>, std::type_identity<Acc>) {
    Out* out = reinterpret_cast<Out*>(c_at(p, batch, i, j));
    const Acc* bias = p.bias == nullptr ? nullptr : static_cast<const Acc*>(p.bias) + j;
    for (int64_t r = 0; r < m; ++r)
      finish_row(out + r * p.c_row_stride, static_cast<const Acc*>(sums) + r * ld, bias, n,
                 p.accumulate);
  };
  constexpr std::type_identity<float> f32;
  constexpr std::type_identity<double> f64;
  if (kernel.c == DType::f64) rows(f64, f64);
  else if (p.c_dtype == DType::f32) rows(f32, f32);
  else rows(std::type_identity<bfloat16>{}, f32);
}

struct Cell {
  const GemmKernel& kernel;
  const GemmProblem& p;
  const Blocks& blocks;
  int64_t batch, i0, j0;  // which product, first row and column
  const void* panels;     // the product's packed B

  void run() const {
    const int64_t m = std::min(blocks.mc, p.m - i0), n = std::min(blocks.nc, p.n - j0);
    const int64_t a_item = itemsize(kernel.a), c_item = itemsize(kernel.c);
    const bool in_place = usable_in_place(kernel, p), direct = writes_directly(kernel, p);
    std::optional<Workspace> a_pack, sums;
    if (!in_place) a_pack.emplace(m * blocks.kc * a_item);
    // Sums of one block of k need a tile, of several the whole cell.
    const bool one_block = blocks.depths == 1;
    const int64_t sum_ld = one_block ? kernel.nr : blocks.nc;
    if (!direct) sums.emplace((one_block ? kernel.mr : blocks.mc) * sum_ld * c_item);

    const auto* a0 = at(p.a.data, batch * p.a.batch_stride + i0 * p.a.row_stride, a_item);
    for (int64_t depth = 0; depth < blocks.depths; ++depth) {
      const int64_t p0 = depth * blocks.kc, k_left = padded_k(kernel, p.k) - p0;
      const int64_t k = std::min(blocks.kc, k_left);
      const void* a = at(a0, p0 * p.a.col_stride, a_item);
      int64_t lda = p.a.row_stride;
      if (!in_place) {
        pack_rows(a, m, std::min(k, p.k - p0), k, a_pack->as<void>());
        a = a_pack->as<void>(), lda = k;
      }
      for (int64_t j = 0; j < n; j += kernel.nr) {
        const int64_t panel = (j0 + j) / kernel.nr;
        const void* b =
            at(panels, panel * panel_elements(kernel, p.k) + p0 * kernel.nr, itemsize(kernel.b));
        for (int64_t i = 0; i < m; i += kernel.mr) {
          const void* rows = at(a, i * lda, a_item);
          GemmTile tile{.m = std::min<int64_t>(kernel.mr, m - i),
                        .n = std::min<int64_t>(kernel.nr, n - j),
                        .k = k,
                        .batch = 1,
                        .a = &rows,
                        .lda = lda,
                        .b = &b,
                        .c = direct ? c_at(p, batch, i0 + i, j0 + j)
                                    : at(sums->as<void>(), one_block ? 0 : i * sum_ld + j, c_item),
                        .ldc = direct ? p.c_row_stride : sum_ld,
                        .accumulate = depth > 0 || (direct && p.accumulate)};
          kernel.run(tile);
          if (!direct && depth + 1 == blocks.depths)
            finish(kernel, p, batch, i0 + i, j0 + j, tile.m, tile.n, tile.c, tile.ldc);
        }
      }
    }
  }

  void pack_rows(const void* a, int64_t m, int64_t k, int64_t ld, void* to) const {
    visit_floating("gemm", kernel.a, [&]<class T>(std::type_identity<T>) {
      pack_a(static_cast<const T*>(a), p.a.row_stride, p.a.col_stride, m, k, ld,
             static_cast<T*>(to));
    });
  }
};

/// k = 0: sums of nothing.
void write_zeros(const GemmKernel& kernel, const GemmProblem& p) {
  const Workspace zeros(p.n * itemsize(kernel.c));
  std::fill_n(zeros.as<std::byte>(), p.n * itemsize(kernel.c), std::byte{0});
  for (int64_t l = 0; l < p.batch; ++l) finish(kernel, p, l, 0, 0, p.m, p.n, zeros.as<void>(), 0);
}

/// Packs B of `batch` products one after the other: cells are panels, long ones cut along k.
void pack_batch(const GemmKernel& kernel, const GemmOperand& b, int64_t batch, int64_t k, int64_t n,
                void* panels) {
  const int64_t depth = round_up(512, kernel.k_multiple), item = itemsize(kernel.b);
  const int64_t depths = ceil_div(k, depth), count = panel_count(kernel, n);
  parallel_cells(batch * count * depths, kernel.nr * std::min(depth, k), [&](int64_t cell) {
    const int64_t l = cell / depths / count, panel = cell / depths % count,
                  p = cell % depths * depth;
    const int64_t j = panel * kernel.nr;
    const void* from = at(b.data, l * b.batch_stride + p * b.row_stride + j * b.col_stride, item);
    void* to = at(panels, (l * count + panel) * panel_elements(kernel, k) + p * kernel.nr, item);
    pack_b_panel(kernel, from, b.row_stride, b.col_stride, std::min(depth, k - p),
                 std::min<int64_t>(kernel.nr, n - j), to);
  });
}

}  // namespace

int64_t packed_b_bytes(const GemmKernel& kernel, int64_t k, int64_t n) {
  return panel_count(kernel, n) * panel_elements(kernel, k) * itemsize(kernel.b);
}

void pack_gemm_b(const GemmKernel& kernel, const GemmOperand& b, int64_t k, int64_t n,
                 void* panels) {
  pack_batch(kernel, b, 1, k, n, panels);
}

void gemm(const GemmKernel& kernel, const GemmProblem& p) {
  if (p.m == 0 || p.n == 0 || p.batch == 0) return;
  if (p.k == 0) return write_zeros(kernel, p);
  const int64_t b_bytes = packed_b_bytes(kernel, p.k, p.n);
  const void* panels = p.packed_b;
  const bool shared = panels != nullptr || p.b.batch_stride == 0;
  std::optional<Workspace> packed;
  if (panels == nullptr) {
    const int64_t matrices = shared ? 1 : p.batch;
    packed.emplace(matrices * b_bytes);
    pack_batch(kernel, p.b, matrices, p.k, p.n, packed->as<void>());
    panels = packed->as<void>();
  }
  const Blocks blocks(kernel, p);
  const int64_t cells = p.batch * blocks.rows * blocks.columns;
  parallel_cells(cells, blocks.mc * blocks.nc * p.k, [&](int64_t cell) {
    const int64_t batch = cell / blocks.columns / blocks.rows;
    const int64_t i0 = cell / blocks.columns % blocks.rows * blocks.mc;
    const int64_t j0 = cell % blocks.columns * blocks.nc;
    const void* b = at(panels, shared ? 0 : batch * b_bytes, 1);
    Cell{kernel, p, blocks, batch, i0, j0, b}.run();
  });
}

}  // namespace quern::kernels
