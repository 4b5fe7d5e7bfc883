// The gradient of the weight with one operand transposed, which transposed.cpp describes.
#pragma once
#include <vector>

#include "quern/ops/kernels/conv/blocks.h"
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
  /// Pixels of a block, neighbours `pixel` items apart, and what maps their channels.
  struct Source {
    const T* at;
    int64_t pixel;
    ChannelMap map;
  };
  /// Where the products of a tap begin in A and in a panel of B, a run of `k` pixels each.
  struct Runs {
    std::vector<int64_t> a, b;
    int64_t k;
  };
  /// `k` pixels, from `begin` on, of each of `runs` runs.
  struct Chunk {
    int64_t run, runs, begin, k;
  };
  void choose_split();
  void choose_blocks();
  void sum_up(int64_t index, const Sums& sums) const;
  Source copy_x(const Cell& cell, const Block& block, T* copied) const;
  Source source(const Cell& cell, const Block& block, bool of_x, T* copied) const;
  void pack_a(const Cell& cell, const Block& block, T* copied, Operand* a) const;
  void copy_tap_rows(const Cell& cell, const Block& block, Operand* a) const;
  void copy_rows(const Cell& cell, const Block& block, Operand* a) const;
  void transpose(const Cell& cell, const Block& block, const Source& from, Operand* a) const;
  void pack_b(const Cell& cell, const Block& block, T* copied, Operand* b) const;
  void interleave(const Cell& cell, const Block& block, const Source& from, Operand* b) const;
  void pack_row(const T* dy, int64_t outputs, int64_t first, int64_t term, Operand* panel) const;
  Runs runs(const Cell& cell, const Block& block, int64_t tap) const;
  std::vector<Chunk> chunks(const Block& block) const;
  void multiply(const Cell& cell, const Block& block, const Operand* a, const Operand* b,
                bool first, const Sums& sums, Prefetch& prefetch) const;

  /// Is it a tile of AMX, or of its emulation?
  bool amx() const { return gemm_.enter != nullptr; }
  int64_t taps() const { return tap_rows_ * tap_columns_; }
  /// The channels that a cell reads, of all groups'.
  Extent channels(const Cell& cell, bool of_x) const {
    if (of_x && kw_in_k_) return {cell.group * icg_, icg_};
    const Extent& e = of_x == x_is_a_ ? cell.rows : cell.columns;
    return {cell.group * (of_x ? icg_ : ocg_) + e.begin, e.size};
  }
  Sums sums(Acc* all) const {
    const int64_t row = taps() * gemm_.nr, panel = cells_.row_unit * row;
    return {all, panel * panel_count(gemm_, cells_.max_columns()), panel, row, gemm_.nr};
  }
  int64_t sums_items() const {
    return ceil_div(cells_.max_rows(), cells_.row_unit) * sums(nullptr).tile;
  }
  Scratch scratch(int64_t rows) const { return {y_axis_, x_axis_, rows, width_}; }
  int64_t pixels(const Block& block) const { return block.images * block.rows * p_.ow; }
  int64_t positions(const Block& block) const { return scratch(block.rows).image() * block.images; }
  int64_t run_count(const Block& block) const {
    return dense_ ? 1 : linear_ ? block.images : block.images * block.rows;
  }
  int64_t run_items(const Block& block) const {
    return dense_ ? pixels(block) : linear_ ? (block.rows - 1) * width_ + p_.ow : p_.ow;
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

  Axis x_axis_;                     // of A's positions; under kw_in_k_ of one tap
  Axis taps_axis_;                  // of all x taps
  int64_t tap_rows_, tap_columns_;  // products per block of pixels
  bool kw_in_k_;                    // the x taps are rows of A
  bool pairs_;                      // channels are innermost, and the kernel takes pairs
  bool dense_;                      // without taps: a run is all pixels of a block
  bool x_copied_;                   // with its padding, or what strides leave of it
  bool x_is_a_;                     // and dy is B; else the other way round
  int64_t width_;                   // positions of a row of pixels
  bool linear_;                     // a run is an image's block and not a row
  int64_t chunk_;                   // positions of a chunk, at most
  WgradCells cells_;                // rows: channels of A, times x taps if kw_in_k_
};

}  // namespace quern::kernels
