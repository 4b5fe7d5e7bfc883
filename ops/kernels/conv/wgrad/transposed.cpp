// The gradient of the weight:
//
//   dw[o][c][tap] = Σ over pixels of dy[pixel][o] · x[pixel under tap][c]
//
//   for each cell (group, range of blocks of pixels, of rows of A, of output channels), in parallel
//     for each block of pixels                            A and B together aim at half of L2
//       A = x transposed to [channel][position], zero-padded as in axis.h
//       B = dy in panels [pixel][nr output channels]
//       for each tap, for each tile of mr channels and nr output channels
//         C[mr × nr] += Σ runs of pixels A[mr × run] · B[run × nr]
//   dw = the cells' C, summed over the ranges of pixels in their order
//
// A tap is an offset into A. A run of pixels is a row of outputs, so that padding is left out;
// where rows are too short for the kernel's k_multiple, it is all rows of the block's image with
// the padding between them, which meets zeros in B. With few input channels (the stem), the columns
// of the taps become rows of A.
//
// Kernels that run on outer products have a faster way where channels are innermost: outer.cpp.
#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "quern/ops/kernels/blocking.h"
#include "quern/ops/kernels/conv/taps/taps.h"
#include "quern/ops/kernels/conv/wgrad/cells.h"
#include "quern/ops/kernels/conv/wgrad/outer.h"
#include "quern/ops/kernels/conv/wgrad/wgrad.h"
#include "quern/ops/kernels/gemm/micro_kernel.h"
#include "quern/ops/kernels/pack/matrix.h"
#include "quern/tensor/dtype.h"
#include "quern/tensor/storage.h"

namespace quern::kernels {
namespace {

/// T is what x and dy hold, Operand what is multiplied: T, or terms of bf16.
template <class T, class Operand>
class WgradEngine : public WgradOperands {
 public:
  using Acc = Accumulator<T>;

  explicit WgradEngine(const ConvChoice& choice);
  void run(Acc* dw) const { cells_.run(*this, multiplications(), sums_items(), 16, dw); }

  // As WgradCells::run() calls them. Sums are [tap][row of A][output channel].
  void run_cell(int64_t index, Acc* sums) const;
  void run_whole(int64_t index, Acc* dw) const {
    const Workspace sums(sums_items() * static_cast<int64_t>(sizeof(Acc)));
    run_cell(index, sums.as<Acc>());
    const WgradCell cell = cells_[index];
    merge(cell, 0, cell.rows.size, sums.as<Acc>(), dw);
  }
  void merge(const WgradCell& cell, int64_t row, int64_t rows, const Acc* sums, Acc* dw) const;

 private:
  using Cell = WgradCell;  // columns are output channels
  void pack_a(const Cell& cell, const Block& block, Operand* a) const;
  void pack_b(const Cell& cell, const Block& block, Operand* b) const;
  void pack_row(const T* dy, int64_t outputs, int64_t first, int64_t term, Operand* panel) const;
  void multiply(const Cell& cell, const Block& block, const Operand* a, const Operand* b,
                bool first, Acc* sums) const;
  void choose_split();

  int64_t runs(const Block& block) const {
    return linear_ ? block.images : block.images * block.rows;
  }
  int64_t run_length(const Block& block) const {
    return padded_k(gemm_, linear_ ? (block.rows - 1) * width_ + p_.ow : p_.ow);
  }
  /// Items of a row of A: all positions, and what the last run reads beyond them.
  int64_t row_items(const Block& block) const;
  /// Of a term.
  int64_t a_items(const Cell& cell, const Block& block) const {
    return round_up(row_items(block) * cell.rows.size, 64);
  }
  int64_t b_items(const Cell& cell, const Block& block) const {
    return panel_count(gemm_, cell.columns.size) * runs(block) * run_length(block) * gemm_.nr;
  }
  int64_t sums_items() const {
    return tap_rows_ * tap_columns_ * cells_.max_rows() * cells_.max_columns();
  }

  std::vector<Axis> x_axes_;        // one an x tap if kw_in_k, else one of all
  int64_t tap_rows_, tap_columns_;  // products per block of pixels
  int64_t width_;                   // positions of a row of pixels
  bool linear_;                     // a run is an image's block and not a row
  WgradCells cells_;                // rows: input channels, times x taps if kw_in_k
};

template <class T, class Operand>
WgradEngine<T, Operand>::WgradEngine(const ConvChoice& choice) : WgradOperands(choice) {
  const bool kw_in_k = forward_taps(p_).kw_in_k;
  if (kw_in_k)
    for (int64_t s = 0; s < p_.kw; ++s)
      x_axes_.push_back(forward_axis(p_.iw, p_.ow, 1, p_.stride_w, p_.pad_w - s, 1));
  else x_axes_ = {forward_axis(p_.iw, p_.ow, p_.kw, p_.stride_w, p_.pad_w, p_.dilation_w)};
  tap_rows_ = p_.kh;
  tap_columns_ = kw_in_k ? 1 : p_.kw;
  cells_ = {.groups = p_.groups,
            .rows = icg_ * static_cast<int64_t>(x_axes_.size()),
            .columns = ocg_,
            .row_unit = 1,
            .column_unit = gemm_.nr};
  width_ = x_axes_[0].extent(p_.ow);
  // Rounding every row up to k_multiple against reading the padding between rows.
  linear_ = padded_k(gemm_, p_.ow) >= width_;
  choose_split();
}

template <class T, class Operand>
void WgradEngine<T, Operand>::choose_split() {
  const int64_t taps = tap_rows_ * tap_columns_;
  // Channels are split until a cell's sums fit in L2: rows of A first, since every range of output
  // channels transposes x again and copying dy again is cheap. Then pixels, for enough cells.
  int64_t rows = cells_.rows, outputs = round_up(ocg_, gemm_.nr);  // of a cell
  const auto cells = [&] {
    return p_.groups * ceil_div(cells_.rows, rows) * ceil_div(ocg_, outputs);
  };
  const auto too_large = [&] {
    return taps * rows * outputs * static_cast<int64_t>(sizeof(Acc)) > cache::transposed_sums();
  };
  const int64_t wanted = wanted_cells(multiplications());
  // Partial sums cost memory traffic: at most half as much of them as of x and dy.
  const int64_t affordable =
      1 + (p_.n * (p_.ic * p_.ih * p_.iw + p_.oc * p_.oh * p_.ow)) / (2 * p_.oc * icg_ * taps);
  while (too_large() || cells() * affordable < std::min<int64_t>(wanted, 8)) {
    if (rows > 4 * gemm_.mr) rows = (ceil_div(rows, gemm_.mr) - 1) * gemm_.mr;
    else if (outputs > gemm_.nr) outputs = round_up(outputs / 2, gemm_.nr);
    else break;
  }
  cells_.row_parts = ceil_div(cells_.rows, rows);
  cells_.column_parts = ceil_div(panel_count(gemm_, ocg_), outputs / gemm_.nr);
  cells_.pixel_parts = std::min(ceil_div(wanted, p_.groups * cells_.channel_cells()), affordable);

  const auto bytes = [&](int64_t block_rows) {
    const int64_t a = Scratch(y_axis_, x_axes_[0], block_rows).image() * cells_.max_rows();
    const int64_t b = block_rows * round_up(p_.ow, gemm_.k_multiple) * cells_.max_columns();
    return terms_ * (a + b) * static_cast<int64_t>(sizeof(Operand));
  };
  cells_.cut(BlockGrid::within(p_.n, p_.oh, cache::transposed_block(), bytes), 2);
}

template <class T, class Operand>
int64_t WgradEngine<T, Operand>::row_items(const Block& block) const {
  const int64_t positions = Scratch(y_axis_, x_axes_[0], block.rows).image() * block.images;
  // An odd number of cache lines: rows of A spread over all sets.
  const int64_t line = 64 / static_cast<int64_t>(sizeof(Operand));
  return (ceil_div(positions + run_length(block), line) | 1) * line;
}

template <class T, class Operand>
void WgradEngine<T, Operand>::run_cell(int64_t index, Acc* sums) const {
  const KernelUse use(gemm_);
  const Cell cell = cells_[index];
  const Block largest = cells_.grid[0];
  const int64_t a_items = terms_ * this->a_items(cell, largest);
  const int64_t b_items = terms_ * this->b_items(cell, largest);
  const Workspace scratch((a_items + b_items) * static_cast<int64_t>(sizeof(Operand)));
  auto* a = scratch.as<Operand>();
  auto* b = a + a_items;
  for (int64_t i = 0; i < cell.blocks.size; ++i) {
    const Block block = cells_.grid[cell.blocks.begin + i];
    pack_a(cell, block, a);
    pack_b(cell, block, b);
    multiply(cell, block, a, b, i == 0, sums);
  }
}

/// A is [row][position]; what follows the positions meets zeros in B, so it must be finite.
template <class T, class Operand>
void WgradEngine<T, Operand>::pack_a(const Cell& cell, const Block& block, Operand* a) const {
  const int64_t stride = row_items(block);
  const int64_t positions = Scratch(y_axis_, x_axes_[0], block.rows).image() * block.images;
  const int64_t term = a_items(cell, block);
  for (int64_t row = 0; row < terms_ * cell.rows.size; ++row) {
    Operand* to = a + row / cell.rows.size * term + row % cell.rows.size * stride;
    std::fill(to + positions, to + stride, Operand{});
  }
  for (int64_t row = 0; row < cell.rows.size;) {
    const int64_t tap = (cell.rows.begin + row) / icg_, channel = (cell.rows.begin + row) % icg_;
    const int64_t channels = std::min(icg_ - channel, cell.rows.size - row);
    const int64_t first = cell.group * icg_ + channel;
    copy_block({.item = sizeof(T),
                .strides = x_strides_,
                .channels = channels,
                .position_stride = 1,
                .channel_stride = stride,
                .map = from_channel<Acc>(map_, first),
                .bf16_terms = bf16_terms_,
                .term_stride = term},
               y_axis_, x_axes_[static_cast<size_t>(tap)], block,
               static_cast<const T*>(x_) + first * x_strides_.c, a + row * stride);
    row += channels;
  }
}

/// B is [term][panel][run][k/kr][nr][kr].
template <class T, class Operand>
void WgradEngine<T, Operand>::pack_b(const Cell& cell, const Block& block, Operand* b) const {
  const int64_t length = run_length(block), panel_items = runs(block) * length * gemm_.nr;
  const int64_t term = b_items(cell, block);
  const T* dy =
      static_cast<const T*>(dy_) + (cell.group * ocg_ + cell.columns.begin) * dy_strides_.c;
  const bool gaps = linear_ || length != p_.ow || cell.columns.size % gemm_.nr != 0;
  std::fill_n(b, gaps ? terms_ * term : 0, Operand{});
  for (int64_t n = 0; n < block.images; ++n) {
    for (int64_t i = 0; i < block.rows; ++i) {
      const T* row = dy + (block.image + n) * dy_strides_.n + (block.row + i) * dy_strides_.y;
      const int64_t run = linear_ ? n : n * block.rows + i;
      for (int64_t o = 0; o < cell.columns.size; o += gemm_.nr)
        pack_row(row + o * dy_strides_.c, std::min<int64_t>(gemm_.nr, cell.columns.size - o),
                 linear_ ? i * width_ : 0, term,
                 b + o / gemm_.nr * panel_items + run * length * gemm_.nr);
    }
  }
}

/// A row of pixels to rows of a panel from `first` on.
template <class T, class Operand>
void WgradEngine<T, Operand>::pack_row(const T* dy, int64_t outputs, int64_t first, int64_t term,
                                       Operand* panel) const {
  if constexpr (std::is_same_v<T, Operand>) {
    pack_panel_rows(panel_format(gemm_), dy, dy_strides_.x, dy_strides_.c, p_.ow, outputs, first,
                    panel);
  } else {  // rounded where it is dense
    const bool innermost = dy_strides_.c == 1;
    const int64_t rows = innermost ? p_.ow : outputs, columns = innermost ? outputs : p_.ow;
    const int64_t items = rows * columns;
    const Workspace terms(terms_ * items * static_cast<int64_t>(sizeof(Operand)));
    round_matrix(dy, innermost ? dy_strides_.x : dy_strides_.c, 1, terms.as<Operand>(), columns,
                 rows, columns, bf16_terms_, items);
    for (int64_t t = 0; t < terms_; ++t)
      pack_panel_rows(panel_format(gemm_), terms.as<Operand>() + t * items, innermost ? columns : 1,
                      innermost ? 1 : columns, p_.ow, outputs, first, panel + t * term);
  }
}

template <class T, class Operand>
void WgradEngine<T, Operand>::multiply(const Cell& cell, const Block& block, const Operand* a,
                                       const Operand* b, bool first, Acc* all) const {
  const Scratch scratch(y_axis_, x_axes_[0], block.rows);
  const int64_t ld = cells_.max_columns();
  const int64_t length = run_length(block), stride = row_items(block);
  const int64_t a_term = a_items(cell, block), b_term = b_items(cell, block);
  const auto products =
      std::span(kTermProducts).first(static_cast<size_t>(term_products(bf16_terms_)));
  std::vector<const void*> run_a(static_cast<size_t>(runs(block)) * products.size()),
      run_b(run_a.size());
  std::vector<int64_t> a_offsets, b_offsets;
  const Phase rows = y_axis_.phase(0), columns = x_axes_[0].phase(0);
  for (int64_t r = 0; r < rows.taps; ++r) {
    const Tap ty = y_axis_.tap(rows, r);
    // The runs of pixels that this row of taps reaches.
    a_offsets.clear(), b_offsets.clear();
    for (int64_t run = 0; run < runs(block); ++run) {
      const int64_t n = linear_ ? run : run / block.rows, i = linear_ ? 0 : run % block.rows;
      const int64_t source = (block.row + i) * p_.stride_h + ty.offset;
      if (!linear_ && (source < 0 || source >= p_.ih)) continue;
      for (const TermProduct& term : products) {
        a_offsets.push_back(n * scratch.image() + i * width_ + term.a * a_term);
        b_offsets.push_back(run * length * gemm_.nr + term.b * b_term);
      }
    }
    for (int64_t column = 0; column < tap_columns_; ++column) {
      const int64_t tap_a = scratch.tap(ty, x_axes_[0].tap(columns, column));
      Acc* sums = all + (ty.kernel * tap_columns_ + column) * cells_.max_rows() * ld;
      const int64_t step = even_piece(cell.rows.size, gemm_.mr);
      for (int64_t row = 0; row < cell.rows.size; row += step) {
        for (int64_t o = 0; o < cell.columns.size; o += gemm_.nr) {
          const GemmTile tile{.m = std::min(step, cell.rows.size - row),
                              .n = std::min<int64_t>(gemm_.nr, cell.columns.size - o),
                              .k = length,
                              .batch = static_cast<int64_t>(a_offsets.size()),
                              .a = run_a.data(),
                              .lda = stride,
                              .b = run_b.data(),
                              .c = sums + row * ld + o,
                              .ldc = ld,
                              .accumulate = !first};
          for (size_t t = 0; t < a_offsets.size(); ++t) {
            run_a[t] = a + row * stride + tap_a + a_offsets[t];
            run_b[t] = b + o * runs(block) * length + b_offsets[t];
          }
          if (tile.batch > 0) {
            gemm_.run(tile);
          } else if (first) {
            for (int64_t i = 0; i < tile.m; ++i)
              std::fill_n(static_cast<Acc*>(tile.c) + i * ld, tile.n, Acc{});
          }
        }
      }
    }
  }
}

/// dw of some rows of A. Sums lie along output channels, dw along input channels and taps.
template <class T, class Operand>
void WgradEngine<T, Operand>::merge(const Cell& cell, int64_t row0, int64_t rows, const Acc* all,
                                    Acc* dw) const {
  const int64_t taps = tap_rows_ * tap_columns_, at_once = 16, outputs = cell.columns.size;
  const int64_t ld = cells_.max_columns();
  const int64_t line = ld + 16;  // does not collide with the next in a cache set
  std::vector<Acc> sums(static_cast<size_t>(at_once * taps * line));  // [row][tap][output channel]
  for (int64_t end = row0 + rows; row0 < end; row0 += at_once) {
    const int64_t count = std::min(at_once, end - row0);
    for (int64_t i = 0; i < count * taps; ++i)
      cells_.add_ranges(all + (i % taps * cells_.max_rows() + row0 + i / taps) * ld, sums_items(),
                        outputs, sums.data() + i * line);
    Acc* to = dw + (cell.group * ocg_ + cell.columns.begin) * icg_ * p_.kh * p_.kw;
    const int64_t first = cell.rows.begin + row0;
    if (x_axes_.size() == 1) {
      copy_matrix(sizeof(Acc), sums.data(), 1, line, to + first * taps, icg_ * taps, outputs,
                  count * taps);
    } else {  // kw_in_k: row = column of taps · icg + input channel, tap = row of taps
      for (int64_t i = 0; i < count * taps; ++i) {
        const int64_t row = first + i / taps;
        const int64_t at = (row % icg_ * p_.kh + i % taps) * p_.kw + row / icg_;
        for (int64_t o = 0; o < outputs; ++o)
          to[o * icg_ * p_.kh * p_.kw + at] = sums[static_cast<size_t>(i * line + o)];
      }
    }
  }
}

}  // namespace

std::unique_ptr<const ConvPlan> plan_wgrad(const ConvChoice& choice) {
  std::unique_ptr<const ConvPlan> plan;
  visit_items(choice,
              [&]<class T, class Operand>(std::type_identity<T>, std::type_identity<Operand>) {
                using Outer = OuterWgrad<T, Operand>;
                using Transposed = WgradEngine<T, Operand>;
                plan = Outer::takes(choice.problem, *choice.gemm)
                           ? make_conv_plan<WgradPlan<Outer>>(choice)
                           : make_conv_plan<WgradPlan<Transposed>>(choice);
              });
  return plan;
}

}  // namespace quern::kernels
