// The plan of conv_kn2row: its cells, and its weight.
#include <algorithm>

#include "quern/ops/kernels/blocking.h"
#include "quern/ops/kernels/conv/kn2row/kn2row.h"
#include "quern/ops/kernels/gemm/micro_kernel.h"
#include "quern/ops/kernels/work.h"
#include "quern/tensor/dtype.h"

namespace quern::kernels {
namespace {

std::vector<Kn2rowPlan::TapOfX> taps_by_plane(const Axis& x) {
  std::vector<Kn2rowPlan::TapOfX> taps;
  for (int64_t plane = 0; plane < x.planes; ++plane)
    for (int64_t p = 0; p < x.phases(); ++p) {
      const Phase phase = x.phase(p);
      for (int64_t i = 0; i < phase.taps; ++i)
        if (const Tap tap = x.tap(phase, i); tap.plane == plane) taps.push_back({tap, phase});
    }
  return taps;
}

/// As many rows as L2 has room for, with panels and Z, in cells enough for the threads.
BlockGrid cut(const Kn2rowPlan& plan) {
  const Kn2rowConv& conv = plan.conv;
  const int64_t rows = conv.y.longest_phase();
  const int64_t row = plan.row_items() * itemsize(plan.gemm->a);
  const int64_t z = conv.y.phases() * plan.z_items() * itemsize(plan.gemm->c);
  BlockGrid grid = BlockGrid::within(1, rows, cache::kn2row_block(), [&](int64_t n) {
    return (n * conv.y.stride() + conv.y.kernel * conv.y.dilation) * row + n * z;
  });
  const int64_t cells = ceil_div(wanted_cells(plan.problem.flop() / 2), conv.images);
  grid.images = conv.images;
  grid.block_images = 1;
  grid.block_rows = even_piece(rows, std::min(grid.block_rows, ceil_div(rows, cells)));
  return grid;
}

int64_t most_rows_read(const Kn2rowConv& conv, const BlockGrid& grid) {
  int64_t most = 0;
  for (int64_t i = 0; i < grid.row_blocks(); ++i) {
    const Axis::Range rows = conv.source_rows(grid[i]);
    most = std::max(most, rows.end - rows.begin);
  }
  return most;
}

}  // namespace

Kn2rowConv::Kn2rowConv(const ConvProblem& p, ConvPass pass)
    : images(p.n),
      source_channels(pass == ConvPass::dgrad ? p.oc : p.ic),
      output_channels(pass == ConvPass::dgrad ? p.ic : p.oc) {
  const auto axis = pass == ConvPass::dgrad ? dgrad_axis : forward_axis;
  y = axis(p.ih, p.oh, p.kh, p.stride_h, p.pad_h, p.dilation_h);
  x = axis(p.iw, p.ow, p.kw, p.stride_w, p.pad_w, p.dilation_w);
}

Axis::Range Kn2rowConv::source_rows(const Block& block) const {
  Axis::Range rows{y.source, 0};
  for (int64_t p = 0; p < y.phases(); ++p) {
    const Phase phase = y.phase(p);
    const int64_t last = std::min(block.row + block.rows, phase.count) - 1;
    if (phase.taps == 0 || last < block.row) continue;
    rows.begin = std::min(rows.begin, block.row * y.stride() + phase.offset);
    rows.end = std::max(rows.end, last * y.stride() + phase.last_offset() + 1);
  }
  rows.begin = std::max<int64_t>(rows.begin, 0);
  rows.end = std::min(rows.end, y.source);
  return rows;
}

Kn2rowPlan::Kn2rowPlan(const ConvChoice& choice)
    : ConvPlan(choice),
      conv(problem, pass),
      source_strides(problem.format, conv.source_channels, conv.y.source, conv.x.source),
      out_strides(problem.format, conv.output_channels, conv.y.output, conv.x.output),
      taps(taps_by_plane(conv.x)),
      panels(panel_count(*gemm, conv.positions())),
      z_pitch(panels * gemm->nr),
      grid(cut(*this)),
      most_source_rows(most_rows_read(conv, grid)) {}

int64_t Kn2rowPlan::taps_before(int64_t plane) const {
  return std::ranges::partition_point(taps, [=](const TapOfX& t) { return t.tap.plane < plane; }) -
         taps.begin();
}

int64_t Kn2rowPlan::row_items() const {
  return conv.x.planes * panels * panel_elements(*gemm, conv.source_channels);
}

int64_t Kn2rowPlan::packed_bytes() const {
  return conv.y.kernel * z_rows() * padded_k(*gemm, conv.source_channels) * itemsize(gemm->a);
}

void Kn2rowPlan::pack(const void* weight, DType of_weight, void* packed) const {
  const int64_t k = padded_k(*gemm, conv.source_channels), filter = problem.kh * problem.kw;
  int64_t k_stride = filter, channel_stride = problem.ic * filter;  // of the weight
  if (pass == ConvPass::dgrad) std::swap(k_stride, channel_stride);
  visit_floating("conv2d", of_weight, [&]<class S>(std::type_identity<S>) {
    visit_floating("conv2d", gemm->a, [&]<class T>(std::type_identity<T>) {
      T* to = static_cast<T*>(packed);
      for (int64_t y = 0; y < conv.y.kernel; ++y)
        for (const TapOfX& t : taps)
          for (int64_t channel = 0; channel < conv.output_channels; ++channel, to += k) {
            const S* from = static_cast<const S*>(weight) + channel * channel_stride +
                            y * problem.kw + t.tap.kernel;
            for (int64_t i = 0; i < conv.source_channels; ++i)
              to[i] = static_cast<T>(from[i * k_stride]);
            std::fill(to + conv.source_channels, to + k, T{});
          }
    });
  });
}

}  // namespace quern::kernels
