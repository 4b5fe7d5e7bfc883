// The gradient of the weight: dw[o][c][tap] = Σ over pixels of dy[pixel][o] · x[pixel under tap][c].
//
//   for each cell (group, range of blocks of pixels, of rows of A, of output channels), in parallel
//     for each block of pixels                            A and B together aim at half of L2
//       A = x by columns, or transposed: [channel][position], zero-padded as in axis.h
//       B = dy in panels [pixel][nr output channels]
//       for each tap, for each tile of mr channels and nr output channels
//         C[mr × nr] += Σ runs of pixels A[mr × run] · B[run × nr]
//   dw = the cells' C, summed over the ranges of pixels in their order
//
// Where channels are innermost and the kernel takes A by columns (gemm_kernel.h), packing only moves
// channels together. Every x tap has its copy of A, without the rim, and a run is all rows of an
// image's block that a row of taps reaches.
//
// Otherwise a tap is an offset into A. A run of pixels is a row of outputs, so that padding is left
// out; where rows are too short for the kernel's k_multiple, it is all rows of the block's image with
// the padding between them, which meets zeros in B.
//
// With few input channels (the stem), the columns of the taps become rows of A.
#include "quern/ops/kernels/conv/brgemm_wgrad.h"

#include "quern/tensor/cpu_features.h"
#include "quern/tensor/dtype.h"
#include "quern/tensor/storage.h"

namespace quern::kernels {
namespace {

/// The i-th of `parts` pieces of 0..n.
Extent piece(int64_t n, int64_t parts, int64_t i) {
  return {n * i / parts, n * (i + 1) / parts - n * i / parts};
}

}  // namespace

template <class T>
WgradEngine<T>::WgradEngine(const ConvProblem& problem, const GemmKernel& gemm, const T* x,
                            const T* dy, const SourceMap& map)
    : p_(linearised(problem)),
      gemm_(gemm),
      x_(x),
      dy_(dy),
      map_(map),
      icg_(p_.ic / p_.groups),
      ocg_(p_.oc / p_.groups),
      x_strides_(p_.format, p_.ic, p_.ih, p_.iw),
      dy_strides_(p_.format, p_.oc, p_.oh, p_.ow),
      y_axis_(forward_axis(p_.ih, p_.oh, p_.kh, p_.stride_h, p_.pad_h, p_.dilation_h)) {
  folded_ = forward_taps(p_).folded;
  columns_ = gemm.run_columns && packs_panels(gemm) && gemm.k_multiple == gemm.kr &&
             gemm.mr <= kPitch && p_.format == MemoryFormat::channels_last;
  if (folded_ && columns_)
    x_axes_ = {plain_forward_axis(p_.iw, p_.ow, p_.kw, p_.stride_w, p_.pad_w)};
  else if (folded_)
    for (int64_t s = 0; s < p_.kw; ++s)
      x_axes_.push_back(forward_axis(p_.iw, p_.ow, 1, p_.stride_w, p_.pad_w - s, 1));
  else x_axes_ = {forward_axis(p_.iw, p_.ow, p_.kw, p_.stride_w, p_.pad_w, p_.dilation_w)};
  tap_rows_ = p_.kh;
  tap_columns_ = folded_ ? 1 : p_.kw;
  a_rows_ = icg_ * (folded_ ? p_.kw : 1);
  width_ = columns_ ? round_up(p_.ow, gemm.kr) : x_axes_[0].extent(p_.ow);
  // Rounding every row up to k_multiple against reading the padding between rows.
  linear_ = padded_k(gemm, p_.ow) >= width_;
  in_place_ = p_.kh == 1 && p_.kw == 1 && p_.stride_h == 1 && p_.stride_w == 1 && p_.pad_h == 0 &&
              p_.pad_w == 0;
  choose_split();
}

template <class T>
void WgradEngine<T>::choose_split() {
  const int64_t l2 = cache_sizes().l2, taps = tap_rows_ * tap_columns_;
  // Channels are split until a cell's sums fit in L2. Every range of rows of A packs dy again, every
  // range of output channels packs x: rows are split first where that is the cheaper, as it is when
  // x is transposed or copied for several taps. Then pixels, for enough cells.
  max_rows_ = a_rows_, max_outputs_ = round_up(ocg_, gemm_.nr);
  const auto cells = [&] {
    return p_.groups * ceil_div(a_rows_, max_rows_) * ceil_div(ocg_, max_outputs_);
  };
  const auto too_large = [&] { return sums_items() * static_cast<int64_t>(sizeof(Acc)) > l2; };
  const int64_t wanted = wanted_cells(multiplications());
  // Partial sums cost memory traffic: at most half as much of them as of x and dy.
  const int64_t affordable =
      1 + (p_.n * (p_.ic * p_.ih * p_.iw + p_.oc * p_.oh * p_.ow)) / (2 * p_.oc * icg_ * taps);
  while (too_large() || cells() * affordable < std::min<int64_t>(wanted, 8)) {
    const bool rows_left = max_rows_ > 4 * gemm_.mr, outputs_left = max_outputs_ > gemm_.nr;
    if (!rows_left && !outputs_left) break;
    const bool x_is_cheap = columns_ && tap_columns_ == 1 && max_rows_ < max_outputs_;
    if (rows_left && !(outputs_left && x_is_cheap))
      max_rows_ = (ceil_div(max_rows_, gemm_.mr) - 1) * gemm_.mr;
    else max_outputs_ = round_up(ceil_div(max_outputs_, 2), gemm_.nr);
  }
  row_parts_ = ceil_div(a_rows_, max_rows_);
  output_parts_ = ceil_div(panel_count(gemm_, ocg_), max_outputs_ / gemm_.nr);
  max_rows_ = ceil_div(a_rows_, row_parts_);
  max_outputs_ = ceil_div(panel_count(gemm_, ocg_), output_parts_) * gemm_.nr;

  // A block of pixels costs a pass over the sums, a small one is fetched in smoother pieces (Fetch):
  // 64→256 channels at 56×56 run at 201 GFLOP/s in f32 with an eighth of L2, at 143 with half of it,
  // 256→1024 at 14×14 at 146 and 205. Taken by rows of taps, fewer rows overlap more.
  const int64_t sums_bytes = sums_items() * static_cast<int64_t>(sizeof(Acc));
  const int64_t budget = p_.kh > 1 ? l2 / 2 : std::clamp(2 * sums_bytes, l2 / 8, l2 / 2);
  grid_ = BlockGrid::within(p_.n, p_.oh, budget, [&](int64_t rows) {
    return (a_items({.image = 0, .images = 1, .row = 0, .rows = rows}, max_rows_) +
            rows * round_up(p_.ow, gemm_.k_multiple) * max_outputs_) *
           static_cast<int64_t>(sizeof(T));
  });
  pixel_parts_ = std::min(ceil_div(wanted, p_.groups * row_parts_ * output_parts_), affordable);
  while (grid_.count() < pixel_parts_ && grid_.block_images > 1)
    grid_.block_images = ceil_div(grid_.block_images, 2);
  while (grid_.count() < pixel_parts_ && grid_.block_rows > 2)
    grid_.block_rows = ceil_div(grid_.block_rows, 2);
  pixel_parts_ = std::min(pixel_parts_, grid_.count());
}

template <class T>
WgradEngine<T>::Cell WgradEngine<T>::cell(int64_t group, int64_t pixels, int64_t rows,
                                          int64_t outputs, Acc* sums) const {
  const Extent panels = piece(panel_count(gemm_, ocg_), output_parts_, outputs);
  return {.group = group,
          .blocks = piece(grid_.count(), pixel_parts_, pixels),
          .rows = piece(a_rows_, row_parts_, rows),
          .outputs = {panels.begin * gemm_.nr,
                      std::min(panels.size * gemm_.nr, ocg_ - panels.begin * gemm_.nr)},
          .sums = sums};
}

template <class T>
void WgradEngine<T>::run(Acc* dw) {
  const int64_t channel_cells = row_parts_ * output_parts_, ranges = p_.groups * channel_cells;
  const int64_t cells = ranges * pixel_parts_, items = sums_items();
  const auto channels = [&](int64_t group, int64_t pixels, int64_t i, Acc* sums) {
    return cell(group, pixels, i / output_parts_, i % output_parts_, sums);
  };
  const auto memory = [&](int64_t sums) {
    return Workspace(sums * items * static_cast<int64_t>(sizeof(Acc)));
  };
  if (pixel_parts_ == 1)  // merged while the sums are in L2
    return parallel_pieces(ranges, multiplications() / ranges, [&](int64_t i) {
      const Workspace sums = memory(1);
      const Cell whole = channels(i / channel_cells, 0, i % channel_cells, sums.as<Acc>());
      run_cell(whole);
      merge(whole, dw);
    });
  const Workspace all = memory(cells);  // [group][range of pixels][range of channels]
  parallel_pieces(cells, multiplications() / cells, [&](int64_t i) {
    const int64_t range = i / channel_cells;
    run_cell(channels(range / pixel_parts_, range % pixel_parts_, i % channel_cells,
                      all.as<Acc>() + i * items));
  });
  parallel_pieces(ranges, pixel_parts_ * items, [&](int64_t i) {
    const int64_t group = i / channel_cells, first = group * pixel_parts_ * channel_cells;
    merge(
        channels(group, 0, i % channel_cells, all.as<Acc>() + (first + i % channel_cells) * items),
        dw);
  });
}

template <class T>
void WgradEngine<T>::run_cell(const Cell& cell) const {
  const Block largest = grid_[0];
  const int64_t panels = panel_count(gemm_, cell.outputs.size);
  const int64_t a_items = this->a_items(largest, cell.rows.size);
  const int64_t b_items = panels * runs(largest) * run_length(largest) * gemm_.nr;
  const Workspace scratch((round_up(a_items, 64) + b_items) * static_cast<int64_t>(sizeof(T)));
  const Workspace plain(columns_ ? plain_items(largest, folded_ ? icg_ : cell.rows.size) *
                                       static_cast<int64_t>(sizeof(T))
                                 : 0);
  const Memory memory{
      .plain = plain.as<T>(), .a = scratch.as<T>(), .b = scratch.as<T>() + round_up(a_items, 64)};
  for (int64_t i = 0; i < cell.blocks.size; ++i) {
    const Block block = grid_[cell.blocks.begin + i];
    pack(cell, block, memory);
    Fetch ahead;
    if (i + 1 < cell.blocks.size) ahead = fetch(cell, grid_[cell.blocks.begin + i + 1]);
    multiply(cell, block, memory, i == 0, ahead);
  }
}

/// The pixels of a block, if the cell reads all of their channels.
template <class T>
Fetch WgradEngine<T>::fetch(const Cell& cell, const Block& block) const {
  if (p_.groups > 1 || p_.format != MemoryFormat::channels_last) return {};
  const int64_t pieces = tap_rows_ * tap_columns_ * ceil_div(cell.rows.size, gemm_.mr) *
                         ceil_div(cell.outputs.size, gemm_.nr);
  const auto rows = [&](const T* base, const ImageStrides& strides, int64_t begin, int64_t end) {
    const int64_t items = (block.images - 1) * strides.n + (end - begin) * strides.y;
    return std::span<const std::byte>(
        reinterpret_cast<const std::byte*>(base + block.image * strides.n + begin * strides.y),
        static_cast<size_t>(items) * sizeof(T));
  };
  Fetch ahead;
  if (row_parts_ == 1) {
    const int64_t begin = std::max<int64_t>(block.row * p_.stride_h - p_.pad_h, 0);
    const int64_t end = std::min(p_.ih, (block.row + block.rows - 1) * p_.stride_h - p_.pad_h +
                                            (p_.kh - 1) * p_.dilation_h + 1);
    if (begin < end) ahead.add(rows(x_, x_strides_, begin, end), pieces);
  }
  if (output_parts_ == 1)
    ahead.add(rows(dy_, dy_strides_, block.row, block.row + block.rows), pieces);
  return ahead;
}

template <class T>
void WgradEngine<T>::multiply(const Cell& cell, const Block& block, const Memory& memory,
                              bool first, Fetch& ahead) const {
  const Scratch scratch = this->scratch(block);
  const int64_t length = run_length(block), panel_items = runs(block) * length * gemm_.nr;
  const int64_t step = even_piece(cell.rows.size, gemm_.mr);
  const int64_t lda = columns_ ? gemm_.kr * kPitch : row_items(block);
  // From a tile's rows of A to the next; from an x tap to the next.
  const int64_t a_step = columns_ ? sliver_items(block) : step * row_items(block);
  const int64_t a_column = columns_ ? ceil_div(cell.rows.size, step) * a_step : 0;
  const auto run_tile = columns_ ? gemm_.run_columns : gemm_.run;
  std::vector<const void*> run_a(static_cast<size_t>(runs(block))), run_b(run_a.size());
  std::vector<int64_t> a_offsets, b_offsets;
  for (const Tap& ty : y_axis_.phases[0].taps) {
    // The runs of pixels that this row of taps reaches.
    a_offsets.clear(), b_offsets.clear();
    int64_t k = length;
    if (columns_) {
      const auto [top, bottom] = rows_reached(ty, block);
      k = (bottom - top) * width_;
      const int64_t first = (ty.plane * scratch.height + ty.shift + top) * width_ * kPitch;
      for (int64_t n = 0; n < (k > 0 ? block.images : 0); ++n) {
        a_offsets.push_back(n * image_positions(block) * kPitch + first);
        b_offsets.push_back((n * length + top * width_) * gemm_.nr);
      }
    } else {
      for (int64_t run = 0; run < runs(block); ++run) {
        const int64_t n = linear_ ? run : run / block.rows, i = linear_ ? 0 : run % block.rows;
        const int64_t source = (block.row + i) * p_.stride_h + ty.offset;
        if (!linear_ && (source < 0 || source >= p_.ih)) continue;
        a_offsets.push_back(n * scratch.image() + i * width_);
        b_offsets.push_back(run * length * gemm_.nr);
      }
    }
    for (int64_t column = 0; column < tap_columns_; ++column) {
      const Tap& tx = x_axes_[0].phases[0].taps[static_cast<size_t>(column)];
      const int64_t tap_a = columns_ ? column * a_column : scratch.tap(ty, tx);
      Acc* sums = cell.sums + (ty.kernel * tap_columns_ + column) * max_rows_ * max_outputs_;
      for (int64_t row = 0; row < cell.rows.size; row += step) {
        for (int64_t o = 0; o < cell.outputs.size; o += gemm_.nr) {
          const GemmTile tile{.m = std::min(step, cell.rows.size - row),
                              .n = std::min<int64_t>(gemm_.nr, cell.outputs.size - o),
                              .k = k,
                              .batch = static_cast<int64_t>(a_offsets.size()),
                              .a = run_a.data(),
                              .lda = lda,
                              .b = run_b.data(),
                              .c = sums + row * max_outputs_ + o,
                              .ldc = max_outputs_,
                              .accumulate = !first};
          for (size_t t = 0; t < a_offsets.size(); ++t) {
            run_a[t] = memory.a + tap_a + row / step * a_step + a_offsets[t];
            run_b[t] = memory.b + o / gemm_.nr * panel_items + b_offsets[t];
          }
          ahead.piece();
          if (tile.batch > 0) {
            run_tile(tile);
          } else if (first) {
            for (int64_t i = 0; i < tile.m; ++i)
              std::fill_n(static_cast<Acc*>(tile.c) + i * max_outputs_, tile.n, Acc{});
          }
        }
      }
    }
  }
}

/// dw of some rows of A and output channels: the partial sums of the ranges of pixels, in their
/// order, some rows at a time. They lie along output channels, dw along input channels and taps.
template <class T>
void WgradEngine<T>::merge(const Cell& cell, Acc* dw) const {
  const int64_t range = row_parts_ * output_parts_ * sums_items();  // from one range to the next
  const int64_t taps = tap_rows_ * tap_columns_, at_once = 16;
  const int64_t line = max_outputs_ + 16;  // does not collide with the next in a cache set
  std::vector<Acc> sums(static_cast<size_t>(at_once * taps * line));  // [row][tap][output channel]
  for (int64_t row0 = 0; row0 < cell.rows.size; row0 += at_once) {
    const int64_t count = std::min(at_once, cell.rows.size - row0);
    for (int64_t i = 0; i < count * taps; ++i) {
      const Acc* from = cell.sums + (i % taps * max_rows_ + row0 + i / taps) * max_outputs_;
      Acc* to = sums.data() + i * line;
      std::copy_n(from, cell.outputs.size, to);
      for (int64_t part = 1; part < pixel_parts_; ++part)
        for (int64_t o = 0; o < cell.outputs.size; ++o) to[o] += from[part * range + o];
    }
    Acc* to = dw + (cell.group * ocg_ + cell.outputs.begin) * icg_ * p_.kh * p_.kw;
    const int64_t first = cell.rows.begin + row0;
    if (!folded_) {
      copy_matrix(sizeof(Acc), sums.data(), 1, line, to + first * taps, icg_ * taps,
                  cell.outputs.size, count * taps);
    } else {  // folded: row = column of taps · icg + input channel, tap = row of taps
      for (int64_t i = 0; i < count * taps; ++i) {
        const int64_t row = first + i / taps;
        const int64_t at = (row % icg_ * p_.kh + i % taps) * p_.kw + row / icg_;
        for (int64_t o = 0; o < cell.outputs.size; ++o)
          to[o * icg_ * p_.kh * p_.kw + at] = sums[static_cast<size_t>(i * line + o)];
      }
    }
  }
}

void run_wgrad(const ConvProblem& problem, const GemmKernel& gemm, const void* x, const void* dy,
               void* dw, const SourceMap& map) {
  visit_floating("conv2d", problem.dtype, [&]<class T>(std::type_identity<T>) {
    WgradEngine<T>(problem, gemm, static_cast<const T*>(x), static_cast<const T*>(dy), map)
        .run(static_cast<Accumulator<T>*>(dw));
  });
}

}  // namespace quern::kernels
