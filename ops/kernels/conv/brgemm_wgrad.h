// The engine of the gradient of the weight, which brgemm_wgrad.cpp describes.
#pragma once
#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "quern/ops/kernels/conv/brgemm.h"
#include "quern/ops/kernels/gemm/gemm_registry.h"

namespace quern::kernels {

/// Elements that a sliver of A by columns has room for in a column: whole cache lines of f32, and of
/// pairs of bf16.
constexpr int64_t kPitch = 16;

struct Extent {
  int64_t begin, size;
};

/// Memory that will be packed next, fetched to L2 a piece a tile: it comes while the tile is
/// multiplied, and packing finds it there (256→64 channels at 56×56, f32: 132 to 180 GFLOP/s).
class Fetch {
 public:
  void add(std::span<const std::byte> memory, int64_t pieces) {
    const auto bytes = static_cast<int64_t>(memory.size());
    ranges_[count_++] = {memory.data(), memory.data() + bytes,
                         round_up(ceil_div(bytes, pieces), kLine)};
  }
  void piece() {
    for (int i = 0; i < count_; ++i) {
      Range& range = ranges_[i];
      const std::byte* stop = range.at + std::min(range.piece, range.end - range.at);
      for (; range.at < stop; range.at += kLine) __builtin_prefetch(range.at, 0, 2);
      range.at = stop;
    }
  }

 private:
  static constexpr int64_t kLine = 64;
  struct Range {
    const std::byte *at, *end;
    int64_t piece;
  };
  Range ranges_[2];  // x and dy
  int count_ = 0;
};

template <class T>
class WgradEngine {
 public:
  using Acc = Accumulator<T>;

  WgradEngine(const ConvProblem& problem, const GemmKernel& gemm, const T* x, const T* dy,
              const SourceMap& map);
  void run(Acc* dw);

 private:
  /// One piece of parallel work, and where its sums are: [tap][row of A][output channel].
  struct Cell {
    int64_t group;
    Extent blocks, rows, outputs;
    Acc* sums;
  };
  /// What a cell multiplies: a block of pixels packed, and an image's zero-padded copy.
  struct Memory {
    T *plain, *a, *b;
  };
  Cell cell(int64_t group, int64_t pixels, int64_t rows, int64_t outputs, Acc* sums) const;
  void run_cell(const Cell& cell) const;
  void pack(const Cell& cell, const Block& block, const Memory& memory) const;
  void pack_a_rows(const Cell& cell, const Block& block, T* a) const;
  void pack_a_columns(const Cell& cell, const Block& block, T* plain, T* a) const;
  void pack_b(const Cell& cell, const Block& block, T* b) const;
  Fetch fetch(const Cell& cell, const Block& block) const;
  void multiply(const Cell& cell, const Block& block, const Memory& memory, bool first,
                Fetch& ahead) const;
  void merge(const Cell& cell, Acc* dw) const;
  void choose_split();

  int64_t multiplications() const { return p_.n * p_.oh * p_.ow * icg_ * p_.oc * p_.kh * p_.kw; }
  int64_t runs(const Block& block) const {
    return linear_ ? block.images : block.images * block.rows;
  }
  int64_t run_length(const Block& block) const {
    if (columns_) return block.rows * width_;
    return padded_k(gemm_, linear_ ? (block.rows - 1) * width_ + p_.ow : p_.ow);
  }
  /// The block's rows of outputs [begin, end) for which a row of taps is in the image.
  Axis::Range rows_reached(const Tap& ty, const Block& block) const {
    const auto row_of = [&](int64_t source) {  // the first that reads `source` or beyond
      const int64_t distance = source - ty.offset;
      const int64_t row = distance <= 0 ? 0 : ceil_div(distance, p_.stride_h);
      return std::clamp<int64_t>(row - block.row, 0, block.rows);
    };
    return {row_of(0), row_of(p_.ih)};
  }
  Scratch scratch(const Block& block) const { return {y_axis_, x_axes_[0], block.rows}; }
  /// By rows: items of a row of A, all positions and what the last run reads beyond them.
  int64_t row_items(const Block& block) const {
    const int64_t positions = scratch(block).image() * block.images;
    // An odd number of cache lines: rows of A spread over all sets.
    const int64_t line = 64 / static_cast<int64_t>(sizeof(T));
    return (ceil_div(positions + run_length(block), line) | 1) * line;
  }
  /// By columns: positions of an image.
  int64_t image_positions(const Block& block) const {
    return scratch(block).planes_y * scratch(block).height * width_;
  }
  /// By columns: items of a tile's rows of A under one x tap.
  int64_t sliver_items(const Block& block) const {
    return block.images * image_positions(block) * kPitch;
  }
  int64_t a_items(const Block& block, int64_t rows) const {
    return columns_ ? tap_columns_ * ceil_div(rows, gemm_.mr) * sliver_items(block)
                    : rows * row_items(block);
  }
  /// By columns: items of an image's copy, zero-padded and mapped, or of one row of it.
  int64_t plain_items(const Block& block, int64_t channels) const {
    if (in_place_) return map_.scale ? p_.ow * channels : 0;
    return scratch(block).image() * channels;
  }
  /// Channels of x from `first` on to memory, as copy_block does.
  SourceCopy copy_of(int64_t first, int64_t channels, int64_t position_stride,
                     int64_t channel_stride) const {
    SourceMap map = map_;
    if (map.scale)
      map = {.scale = static_cast<const Acc*>(map.scale) + first,
             .shift = static_cast<const Acc*>(map.shift) + first};
    return {.item = sizeof(T),
            .strides = x_strides_,
            .channels = channels,
            .position_stride = position_stride,
            .channel_stride = channel_stride,
            .map = map};
  }
  int64_t sums_items() const { return tap_rows_ * tap_columns_ * max_rows_ * max_outputs_; }

  const ConvProblem p_;
  const GemmKernel& gemm_;
  const T *x_, *dy_;
  const SourceMap map_;
  int64_t icg_, ocg_;  // channels of a group
  ImageStrides x_strides_, dy_strides_;
  Axis y_axis_;
  bool folded_;                     // the x taps are rows of A
  bool columns_;                    // A is by columns, else by rows
  std::vector<Axis> x_axes_;        // one an x tap if folded into rows, else one of all
  int64_t tap_rows_, tap_columns_;  // products per block of pixels
  int64_t a_rows_;                  // rows of A: input channels, times x taps if folded
  int64_t width_;                   // positions of a row of pixels
  bool linear_;                     // a run is an image's block, as always by columns, not a row
  bool in_place_;                   // A by columns is copied from x itself, or mapped, by rows
  BlockGrid grid_;
  int64_t pixel_parts_, row_parts_, output_parts_;
  int64_t max_rows_, max_outputs_;  // of a cell
};

}  // namespace quern::kernels
