#include "quern/ops/kernels/gemm/gemm.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <optional>

#include "quern/ops/kernels/blocking.h"
#include "quern/ops/kernels/gemm/complete.h"
#include "quern/ops/kernels/gemm/gemm_pack.h"
#include "quern/ops/kernels/gemm/micro_kernel.h"
#include "quern/ops/kernels/pack/bf16_terms.h"
#include "quern/ops/kernels/work.h"
#include "quern/tensor/dtype.h"
#include "quern/tensor/parallel.h"
#include "quern/tensor/storage.h"

namespace quern::kernels {
namespace {

const std::byte* at(const void* data, int64_t elements, int64_t item) {
  return static_cast<const std::byte*>(data) + elements * item;
}
std::byte* at(void* data, int64_t elements, int64_t item) {
  return static_cast<std::byte*>(data) + elements * item;
}

/// How a problem is cut, by its shape alone. A cell, mc×nc of C, is one thread's work; k goes in
/// blocks of kc.
struct Blocks {
  int64_t mc, nc, kc;
  int64_t rows, columns, depths;  // counts of them

  Blocks(const GemmKernel& kernel, const GemmProblem& p) {
    constexpr int64_t kCells = 16;  // enough for eight threads: more pack rows of A several times
    const bool amx = kernel.isa == Isa::amx;
    const int64_t k = padded_k(kernel, p.k);
    depths = ceil_div(k * itemsize(kernel.a), cache::gemm_depth(amx));
    kc = round_up(ceil_div(k, depths), kernel.k_multiple);
    depths = ceil_div(k, kc);

    // All columns, so that the rows of A are packed once, until there are too few cells; but four
    // tiles, which fetch the next panel while they multiply.
    int64_t tiles_m = cache::gemm_rows(amx) / kernel.mr, tiles_n = panel_count(kernel, p.n);
    const auto cells = [&] {
      return p.batch * ceil_div(p.m, tiles_m * kernel.mr) * ceil_div(p.n, tiles_n * kernel.nr);
    };
    while (cells() < kCells && (tiles_m > 4 || tiles_n > 2)) (tiles_m > 4 ? tiles_m : tiles_n) /= 2;
    rows = ceil_div(p.m, tiles_m * kernel.mr);
    mc = round_up(ceil_div(p.m, rows), kernel.mr);
    rows = ceil_div(p.m, mc);
    columns = ceil_div(p.n, tiles_n * kernel.nr);
    nc = round_up(ceil_div(p.n, columns), kernel.nr);
    columns = ceil_div(p.n, nc);
  }
};

/// Whether tiles may read A where it lies: rows dense, whole multiples of k, and not so far apart
/// that all rows of a tile fall into the same two sets of L1.
bool usable_in_place(const GemmKernel& kernel, const GemmProblem& p) {
  if (p.bf16_terms != 0 || p.a.col_stride != 1 || p.k % kernel.k_multiple != 0) return false;
  return p.m <= 4 || p.a.row_stride * itemsize(kernel.a) % (cache::kWay / 2) != 0;
}

/// Sums go to C as tiles make them, unless something remains to be done with them.
bool writes_directly(const GemmKernel& kernel, const GemmProblem& p) {
  return p.c_dtype == kernel.c && p.bias == nullptr;
}

/// Tiles add the bias to their sums and round them to C while these are in registers.
bool completes_in_registers(const GemmKernel& kernel, const GemmProblem& p) {
  return kernel.takes_epilogues && (p.c_dtype == kernel.a || p.c_dtype == kernel.c) &&
         !p.accumulate;
}

std::byte* c_at(const GemmProblem& p, int64_t batch, int64_t i, int64_t j) {
  return at(p.c, batch * p.c_batch_stride + i * p.c_row_stride + j, itemsize(p.c_dtype));
}

/// mc×nc of C, by one thread.
class Cell {
 public:
  /// Of product `batch`, whose B is packed in `panels`, from row i0 and column j0.
  Cell(const GemmKernel& kernel, const GemmProblem& p, const Blocks& blocks, const void* panels,
       int64_t batch, int64_t i0, int64_t j0)
      : kernel_(kernel),
        p_(p),
        blocks_(blocks),
        panels_(panels),
        batch_(batch),
        i0_(i0),
        j0_(j0),
        m_(std::min(blocks.mc, p.m - i0)),
        n_(std::min(blocks.nc, p.n - j0)) {
    if (!usable_in_place(kernel, p)) {
      // One cache line more than a block: rows must not start in the same sets of L1.
      packed_ld_ = blocks.kc + 64 / itemsize(kernel.a);
      packed_a_.emplace(term_copies(p.bf16_terms) * m_ * packed_ld_ * itemsize(kernel.a));
    }
    sums_whole_cell_ = blocks.depths > 1;
    if (!writes_directly(kernel, p) && (sums_whole_cell_ || !completes_in_registers(kernel, p))) {
      // Sums over one block of k need a tile, over several the whole cell.
      sums_ld_ = sums_whole_cell_ ? blocks.nc : kernel.nr;
      sums_.emplace((sums_whole_cell_ ? blocks.mc : kernel.mr) * sums_ld_ * itemsize(kernel.c));
    }
  }

  void run() const {
    for (int64_t depth = 0; depth < blocks_.depths; ++depth) {
      const int64_t p0 = depth * blocks_.kc, k = std::min(blocks_.kc, padded_k(kernel_, p_.k) - p0);
      const Rows a = rows_of_a(p0, k);
      // A call takes as long as so few products.
      const bool at_once = k <= 64 && kernel_.takes_epilogues &&
                           (writes_directly(kernel_, p_) || completes_in_registers(kernel_, p_));
      for (int64_t j = 0; j < n_; j += kernel_.nr) {
        // The first four tiles of a panel prefetch a quarter of the next one each: else its first
        // tile would wait for L3.
        const std::byte* next = j + kernel_.nr < n_          ? panel(p0, j + kernel_.nr)
                                : depth + 1 < blocks_.depths ? panel(p0 + k, 0)
                                                             : nullptr;
        for (int64_t i = 0, tiles; i < m_; i += tiles * kernel_.mr) {
          const int64_t quarter = i / kernel_.mr;
          const bool fetches = next != nullptr && quarter < 4;
          tiles = at_once ? std::max<int64_t>(1, (m_ - i) / kernel_.mr) : 1;
          multiply(a, depth, k, i, j, tiles,
                   fetches ? next + quarter * k * kernel_.nr / 4 * itemsize(kernel_.b) : nullptr);
        }
      }
    }
  }

 private:
  struct Rows {
    const void* data;
    int64_t ld;
    int64_t term;  // elements from a term to the next
  };

  /// B from row p and column j of the cell; bf16 terms lie one packed matrix after the other.
  const std::byte* panel(int64_t p, int64_t j, int term = 0) const {
    const int64_t panels = term * panel_count(kernel_, p_.n) + (j0_ + j) / kernel_.nr;
    return at(panels_, panels * panel_elements(kernel_, p_.k) + p * kernel_.nr,
              itemsize(kernel_.b));
  }

  /// The cell's rows of A from column p0, in place or packed.
  Rows rows_of_a(int64_t p0, int64_t k) const {
    const void* a =
        at(p_.a.data, batch_ * p_.a.batch_stride + i0_ * p_.a.row_stride + p0 * p_.a.col_stride,
           itemsize(operand_dtype(kernel_.a, p_.bf16_terms)));
    if (!packed_a_) return {a, p_.a.row_stride, 0};
    const int64_t term_items = m_ * packed_ld_;
    pack_a_rows(kernel_, a, p_.a, m_, std::min(k, p_.k - p0), k, p_.bf16_terms,
                packed_a_->as<void>(), packed_ld_, term_items);
    return {packed_a_->as<void>(), packed_ld_, term_items};
  }

  /// So many tiles, from row i on, at column j of the cell: a block of k, and after the last what
  /// completes C.
  void multiply(const Rows& a, int64_t depth, int64_t k, int64_t i, int64_t j, int64_t tiles,
                const void* prefetch) const {
    const void *rows[std::size(kTermProducts)], *b[std::size(kTermProducts)];
    for (int t = 0; t < term_products(p_.bf16_terms); ++t) {
      rows[t] = at(a.data, kTermProducts[t].a * a.term + i * a.ld, itemsize(kernel_.a));
      b[t] = panel(depth * blocks_.kc, j, kTermProducts[t].b);
    }
    GemmTile tile{.tiles = tiles,
                  .m = std::min<int64_t>(kernel_.mr, m_ - i),
                  .n = std::min<int64_t>(kernel_.nr, n_ - j),
                  .k = k,
                  .batch = term_products(p_.bf16_terms),
                  .a = rows,
                  .lda = a.ld,
                  .b = b,
                  .prefetch = prefetch,
                  .prefetch_step = prefetch == nullptr ? 0 : 64,
                  .c = nullptr,
                  .ldc = 0,
                  .accumulate = depth > 0};
    if (writes_directly(kernel_, p_)) {
      tile.c = c_at(p_, batch_, i0_ + i, j0_ + j), tile.ldc = p_.c_row_stride;
      tile.accumulate = tile.accumulate || p_.accumulate;
      return kernel_.run(tile);
    }
    if (sums_) {
      tile.c = at(sums_->as<void>(), sums_whole_cell_ ? i * sums_ld_ + j : 0, itemsize(kernel_.c));
      tile.ldc = sums_ld_;
    }
    const bool last = depth + 1 == blocks_.depths;
    if (!last || !completes_in_registers(kernel_, p_)) {
      kernel_.run(tile);
      if (last) complete(p_, batch_, i0_ + i, j0_ + j, tile.m, tile.n, kernel_.c, tile.c, tile.ldc);
      return;
    }
    const Epilogue completed{
        .kind = p_.bias == nullptr ? Epilogue::Kind::store : Epilogue::Kind::activate,
        .map = {.shift = p_.bias == nullptr ? nullptr : at(p_.bias, j0_ + j, itemsize(kernel_.c))},
        .out = c_at(p_, batch_, i0_ + i, j0_ + j),
        .stride = p_.c_row_stride,
        .wide = p_.c_dtype != kernel_.a};
    tile.epilogue = &completed;
    kernel_.run(tile);
  }

  const GemmKernel& kernel_;
  const GemmProblem& p_;
  const Blocks& blocks_;
  const void* panels_;
  int64_t batch_, i0_, j0_, m_, n_;
  std::optional<Workspace> packed_a_, sums_;  // none: A in place; sums in registers, or in C
  int64_t packed_ld_ = 0, sums_ld_ = 0;
  bool sums_whole_cell_ = false;
};

/// k = 0: sums of nothing.
void write_zeros(const GemmKernel& kernel, const GemmProblem& p) {
  const Workspace zeros(p.n * itemsize(kernel.c));
  std::fill_n(zeros.as<std::byte>(), p.n * itemsize(kernel.c), std::byte{0});
  for (int64_t l = 0; l < p.batch; ++l)
    complete(p, l, 0, 0, p.m, p.n, kernel.c, zeros.as<void>(), 0);
}

/// One block of k after the other, whose sums meet in C: in the order in which a cell adds them.
void gemm_by_depths(const GemmKernel& kernel, const GemmProblem& p, int64_t kc) {
  const auto column = [&](const void* operand, int64_t stride, DType of_kernel) {
    return at(operand, kc * stride, itemsize(operand_dtype(of_kernel, p.bf16_terms)));
  };
  GemmProblem block = p;
  for (int64_t left = p.k; left > 0; left -= kc) {
    block.k = std::min(kc, left);
    gemm(kernel, block);
    block.a.data = column(block.a.data, p.a.col_stride, kernel.a);
    block.b.data = column(block.b.data, p.b.row_stride, kernel.b);
    block.accumulate = true;
  }
}

/// A batch whose threads each pack the B of a product for themselves, while it is near.
void gemm_one_by_one(const GemmKernel& kernel, const GemmProblem& p, const Blocks& blocks) {
  const int64_t group = std::max<int64_t>(1, kWorthACell / (p.m * p.n * p.k));
  parallel_chunks(p.batch, group, [&](int64_t begin, int64_t end) {
    const KernelUse use(kernel);
    const Workspace panels(packed_b_bytes(kernel, p.k, p.n, p.bf16_terms));
    for (int64_t batch = begin; batch < end; ++batch) {
      GemmOperand b = p.b;
      b.data = at(b.data, batch * b.batch_stride, itemsize(operand_dtype(kernel.b, p.bf16_terms)));
      pack_b_batch(kernel, b, 1, p.k, p.n, panels.as<void>(), p.bf16_terms);
      for (int64_t i = 0; i < p.m; i += blocks.mc)
        for (int64_t j = 0; j < p.n; j += blocks.nc)
          Cell(kernel, p, blocks, panels.as<void>(), batch, i, j).run();
    }
  });
}

}  // namespace

int64_t packed_b_bytes(const GemmKernel& kernel, int64_t k, int64_t n, int bf16_terms) {
  return term_copies(bf16_terms) * panel_count(kernel, n) * panel_elements(kernel, k) *
         itemsize(kernel.b);
}

void pack_gemm_b(const GemmKernel& kernel, const GemmOperand& b, int64_t k, int64_t n, void* panels,
                 int bf16_terms) {
  pack_b_batch(kernel, b, 1, k, n, panels, bf16_terms);
}

void gemm(const GemmKernel& kernel, const GemmProblem& p) {
  if (p.m == 0 || p.n == 0 || p.batch == 0) return;
  if (p.k == 0) return write_zeros(kernel, p);
  const Blocks blocks(kernel, p);
  const int64_t b_bytes = packed_b_bytes(kernel, p.k, p.n, p.bf16_terms);
  const void* panels = p.packed_b;
  if (panels == nullptr && blocks.depths > 1 && b_bytes > cache::kLargeB &&
      writes_directly(kernel, p))
    return gemm_by_depths(kernel, p, blocks.kc);
  const bool shared = panels != nullptr || p.b.batch_stride == 0;
  if (!shared && p.batch >= 8 && b_bytes <= cache::kSmallB)
    return gemm_one_by_one(kernel, p, blocks);
  std::optional<Workspace> packed;
  if (panels == nullptr) {
    const int64_t matrices = shared ? 1 : p.batch;
    packed.emplace(matrices * b_bytes);
    pack_b_batch(kernel, p.b, matrices, p.k, p.n, packed->as<void>(), p.bf16_terms);
    panels = packed->as<void>();
  }
  const int64_t cells = p.batch * blocks.rows * blocks.columns;
  parallel_pieces(cells, blocks.mc * blocks.nc * p.k, [&](int64_t cell) {
    const KernelUse use(kernel);
    const int64_t batch = cell / blocks.columns / blocks.rows;
    const int64_t i0 = cell / blocks.columns % blocks.rows * blocks.mc;
    const int64_t j0 = cell % blocks.columns * blocks.nc;
    const void* b = at(panels, shared ? 0 : batch * b_bytes, 1);
    Cell(kernel, p, blocks, b, batch, i0, j0).run();
  });
}

}  // namespace quern::kernels
