// The gradient of the weight with one operand transposed, which transposed.cpp describes.
#pragma once
#include <vector>

#include "quern/ops/kernels/conv/taps/taps.h"
#include "quern/ops/kernels/conv/wgrad/cells.h"
#include "quern/ops/kernels/conv/wgrad/wgrad.h"
#include "quern/ops/kernels/gemm/micro_kernel.h"

namespace quern::kernels {

/// T is what x and dy hold, Operand what is multiplied: T, or terms of bf16.
template <class T, class Operand>
class TransposedWgrad : public WgradOperands {
 public:
  using Acc = Accumulator<T>;
  using Cell = WgradCell;
  static constexpr int64_t kItem = sizeof(Operand);

  explicit TransposedWgrad(const ConvChoice& choice);
  void run(Acc* dw) const {
    cells_.run(*this, multiplications(), sums_items(), cells_.row_unit, dw);
  }

  // As WgradCells::run() calls them.
  void run_cell(int64_t index, Acc* all) const { sum_up(index, sums(all)); }
  void run_whole(int64_t index, Acc* dw) const;
  void merge(const Cell& cell, int64_t row, int64_t rows, const Acc* all, Acc* dw) const;

 private:
  /// [tile of rows][panel][row of the tile][tap][column of the panel]: near each other as dw wants
  /// them, a tile and its taps a few pages. Or dw itself.
  struct Sums {
    Acc* at;
    int64_t tile, panel, row, tap;  // from one to the next
  };
  /// Pixels of a tensor, channels innermost, and which of its channels a cell reads.
  struct Source {
    const T* at;
    ImageStrides strides;
    Extent channels;
    ChannelMap map;
    int64_t stride_y, stride_x;  // of outputs
  };
  /// Where the products of a row of taps begin in A and in a panel of B, a run of pixels each.
  struct Runs {
    std::vector<int64_t> a, b;
  };
  void choose_split();
  void choose_blocks();
  void sum_up(int64_t index, const Sums& sums) const;
  void pack_a(const Cell& cell, const Block& block, T* x, Operand* a) const;
  void copy_rows(const Cell& cell, const Block& block, Operand* a) const;
  void transpose(const T* from, int64_t pixel, int64_t positions, int64_t channels,
                 const ChannelMap& map, int64_t stride, int64_t term, Operand* a) const;
  void pack_b(const Cell& cell, const Block& block, Operand* b) const;
  void interleave(const Cell& cell, const Block& block, Operand* b) const;
  void pack_row(const T* dy, int64_t outputs, int64_t first, int64_t term, Operand* panel) const;
  Runs runs(const Cell& cell, const Block& block, const Tap& ty) const;
  void multiply(const Cell& cell, const Block& block, const Operand* a, const Operand* b,
                bool first, const Sums& sums) const;

  int64_t taps() const { return tap_rows_ * tap_columns_; }
  Source source(const Cell& cell, bool of_x) const;
  Sums sums(Acc* all) const {
    const int64_t row = taps() * gemm_.nr, panel = cells_.row_unit * row;
    return {all, panel * panel_count(gemm_, cells_.max_columns()), panel, row, gemm_.nr};
  }
  int64_t sums_items() const {
    return ceil_div(cells_.max_rows(), cells_.row_unit) * sums(nullptr).tile;
  }
  Scratch scratch(int64_t rows) const { return {y_axis_, x_axes_[0], rows, width_}; }
  int64_t pixels(const Block& block) const { return block.images * block.rows * p_.ow; }
  int64_t positions(const Block& block) const {
    return dense_ ? pixels(block) : scratch(block.rows).image() * block.images;
  }
  int64_t run_count(const Block& block) const {
    return linear_ ? block.images : block.images * block.rows;
  }
  int64_t run_items(const Block& block) const {
    return linear_ ? (block.rows - 1) * width_ + p_.ow : p_.ow;
  }
  int64_t run_length(const Block& block) const { return padded_k(gemm_, run_items(block)); }
  /// Items of a row of A: all positions, and what the last run reads beyond them.
  int64_t row_items(const Block& block) const;
  /// Of a term.
  int64_t a_items(int64_t rows, const Block& block) const {
    return round_up(row_items(block) * rows, 64);
  }
  int64_t b_items(int64_t columns, const Block& block) const {
    return panel_count(gemm_, columns) * run_count(block) * run_length(block) * gemm_.nr;
  }

  std::vector<Axis> x_axes_;        // one an x tap if kw_in_k_, else one of all
  int64_t tap_rows_, tap_columns_;  // products per block of pixels
  bool kw_in_k_;                    // the x taps are rows of A
  bool pairs_;                      // channels are innermost, and the kernel takes pairs
  bool dense_;                      // both operands are read as they lie
  bool x_is_a_;                     // and dy is B; else the other way round
  int64_t width_;                   // positions of a row of pixels
  bool linear_;                     // a run is an image's block and not a row
  WgradCells cells_;                // rows: channels of A, times x taps if kw_in_k_
};

}  // namespace quern::kernels
