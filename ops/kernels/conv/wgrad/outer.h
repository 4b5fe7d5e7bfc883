// The gradient of the weight on outer products, which outer.cpp describes.
#pragma once
#include <vector>

#include "quern/ops/kernels/blocking.h"
#include "quern/ops/kernels/conv/taps/taps.h"
#include "quern/ops/kernels/conv/wgrad/cells.h"
#include "quern/ops/kernels/conv/wgrad/wgrad.h"
#include "quern/ops/kernels/gemm/micro_kernel.h"

namespace quern::kernels {

/// Rows that a sliver of A has room for: whole cache lines of f32, and of pairs of bf16.
constexpr int64_t kPitch = 16;

/// T is what x and dy hold, Operand what is multiplied: T, or terms of bf16.
template <class T, class Operand>
class OuterWgrad : public WgradOperands {
 public:
  using Acc = Accumulator<T>;
  using Cell = WgradCell;
  static constexpr int64_t kItem = sizeof(Operand);
  static constexpr bool kRounds = !std::is_same_v<T, Operand>;

  static bool takes(const GemmKernel& gemm) {
    return gemm.run_outer && packs_panels(panel_format(gemm)) &&
           std::max(gemm.mr, gemm.narrow_mr) <= kPitch;
  }
  explicit OuterWgrad(const ConvChoice& choice);
  void run(Acc* dw) const { cells_.run(*this, multiplications(), sums_items(), 16, dw); }

  // As WgradCells::run() calls them.
  void run_cell(int64_t index, Acc* sums) const { sum_up(index, {sums, cells_.max_columns()}); }
  void run_whole(int64_t index, Acc* dw) const;
  void merge(const Cell& cell, int64_t row, int64_t rows, const Acc* sums, Acc* dw) const;

 private:
  /// [tap][row of A][column of B], rows ld apart.
  struct Sums {
    Acc* at;
    int64_t ld;
  };
  /// Pixels of a block, neighbours `pixel` items apart; and its terms, if those are several.
  template <class Element>
  struct Source {
    const Element* at;
    int64_t pixel, term = 0;
    int64_t channel = 1, image = 0;  // 0: images follow each other
  };
  /// Where a cell copies a block to: A, the operand that becomes A, and B.
  struct Memory {
    Operand* a;
    T* source;
    Operand* b;
  };
  /// Products of a row of taps: a run of `k` pixels each.
  struct Runs {
    std::vector<int64_t> a, b;
    int64_t k;
  };
  void choose_split();
  void choose_blocks();
  void sum_up(int64_t index, const Sums& sums) const;
  Source<Operand> pack(const Cell& cell, const Block& block, const Memory& memory) const;
  void pack_x(const Cell& cell, const Block& block, Operand* a) const;
  template <class To>
  Source<To> copy_x(const Cell& cell, const Block& block, To* to) const;
  template <class To>
  Source<To> copy_dy(const Cell& cell, const Block& block, To* to) const;
  void pack_a(const Cell& cell, const Block& block, const Source<T>& source, Operand* a) const;
  void pack_columns(const Cell& cell, const Block& block, const Source<T>& source, int64_t count,
                    int64_t column, Operand* a, const ChannelMap& map = {}) const;
  Runs runs(const Block& block, const Tap& ty, int64_t column, int64_t channels,
            int64_t pixel) const;
  void multiply(const Cell& cell, const Block& block, const Operand* a, const Source<Operand>& b,
                const Sums& sums, bool first, Prefetch& prefetch) const;

  const T* x() const { return static_cast<const T*>(x_); }
  const T* dy() const { return static_cast<const T*>(dy_); }
  int64_t taps() const { return tap_rows_ * tap_columns_; }
  int64_t sums_items() const { return taps() * cells_.max_rows() * cells_.max_columns(); }
  int64_t pixels(const Block& block) const { return block.images * block.rows * p_.ow; }
  /// Of a copy of x.
  Scratch scratch(const Block& block) const { return {y_axis_, x_axes_[0], block.rows}; }
  /// The first channel of x and of dy that a cell reads, and how many.
  Extent x_channels(const Cell& cell) const {
    if (kw_in_k_) return {cell.group * icg_, icg_};
    const Extent& e = x_is_a_ ? cell.rows : cell.columns;
    return {cell.group * icg_ + e.begin, e.size};
  }
  Extent dy_channels(const Cell& cell) const {
    const Extent& e = x_is_a_ ? cell.columns : cell.rows;
    return {cell.group * ocg_ + e.begin, e.size};
  }
  /// Items between pixels of a copy: vectors of B end where the next begins, and rows of B do not
  /// all fall into one set of the first-level cache.
  int64_t copy_pixel(int64_t channels) const {
    const int64_t items = round_up(channels, gemm_.nr);
    return collides(items) ? items + gemm_.nr : items;
  }
  bool collides(int64_t items) const { return items * kItem % cache::kWay == 0; }
  /// Items of a copy of x; behind it a vector may be read.
  int64_t x_items(const Block& block, int64_t channels) const {
    return x_copied_ ? scratch(block).image() * block.images * x_pixel(channels) + gemm_.nr : 0;
  }
  int64_t x_pixel(int64_t channels) const { return x_is_a_ ? channels : copy_pixel(channels); }
  int64_t dy_items(const Block& block, int64_t channels) const {
    return dy_copied_ ? pixels(block) * dy_pixel(channels) : 0;
  }
  int64_t dy_pixel(int64_t channels) const { return x_is_a_ ? copy_pixel(channels) : channels; }
  /// Columns of A that a block packs.
  int64_t a_columns(const Block& block) const {
    if (linear_) return round_up(pixels(block), gemm_.kr);
    if (by_image_) return block.images * image_columns(block);
    const int64_t rows = x_is_a_ ? scratch(block).planes_y * scratch(block).height : block.rows;
    return block.images * rows * width_;
  }
  int64_t image_columns(const Block& block) const { return round_up(block.rows * p_.ow, gemm_.kr); }
  /// Rows of a tile.
  int64_t mr() const { return cells_.columns <= gemm_.nr / 2 ? gemm_.narrow_mr : gemm_.mr; }
  /// Of a term of A; a multiple of a cache line.
  int64_t a_items(const Block& block, int64_t rows) const {
    return round_up(ceil_div(rows, mr()) * a_columns(block) * kPitch, 64);
  }

  std::vector<Axis> x_axes_;  // one of all x taps, or one an x tap if by_image_
  bool kw_in_k_;              // the x taps are rows of A
  bool x_is_a_;               // and dy is B; else the other way round
  bool linear_;               // a run is all pixels of a block, else
  bool by_image_;             // all of an image that a row of taps reaches, else a row of outputs
  bool x_copied_, dy_copied_;
  int64_t tap_rows_, tap_columns_;
  int64_t width_;  // columns of A for a row of outputs
  bool direct_;    // the sums are dw
  WgradCells cells_;
};

}  // namespace quern::kernels
