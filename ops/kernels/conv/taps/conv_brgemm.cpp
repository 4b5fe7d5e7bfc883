// conv_brgemm: every convolution as batch-reduce GEMMs, forward and dgrad over taps, wgrad over
// pixels. What is decided about it, before a pointer is seen.
#include <algorithm>

#include "quern/ops/kernels/blocking.h"
#include "quern/ops/kernels/conv/taps/taps.h"
#include "quern/ops/kernels/conv/wgrad/wgrad.h"
#include "quern/ops/kernels/gemm/micro_kernel.h"
#include "quern/ops/kernels/pack/bf16_terms.h"
#include "quern/ops/kernels/work.h"
#include "quern/tensor/dtype.h"

namespace quern::kernels {
namespace {

/// Below this many source channels a product per tap would be too short.
constexpr int64_t kFewChannels = 16;

bool few_channels(const ConvProblem& p) {
  return p.ic / p.groups < kFewChannels && p.kw > 1 && p.dilation_w == 1;
}

}  // namespace

ConvProblem linearised(const ConvProblem& problem, bool by_pixel) {
  ConvProblem p = problem;
  if (p.ih * p.iw == 1 && p.oh * p.ow == 1) p.format = MemoryFormat::channels_last;  // it is both
  const bool pointwise =
      p.kh == 1 && p.kw == 1 && p.stride_h == 1 && p.stride_w == 1 && p.pad_h == 0 && p.pad_w == 0;
  if (pointwise && p.format == MemoryFormat::channels_last) {
    p.ih = p.oh = p.n * p.ih;
    p.n = 1;
    if (by_pixel && p.x_gap == 0 && p.y_gap == 0) {
      p.ih = p.oh = p.ih * p.iw;
      p.iw = p.ow = 1;
    }
  }
  return p;
}

int64_t TapConv::k() const { return kw_in_k ? source_channels * (x.reach + 1) : source_channels; }

TapConv forward_taps(const ConvProblem& problem, bool by_pixel) {
  const ConvProblem p = linearised(problem, by_pixel);
  const bool kw_in_k = few_channels(p);
  return {.y = forward_axis(p.ih, p.oh, p.kh, p.stride_h, p.pad_h, p.dilation_h),
          .x = kw_in_k ? plain_forward_axis(p.iw, p.ow, p.kw, p.stride_w, p.pad_w)
                       : forward_axis(p.iw, p.ow, p.kw, p.stride_w, p.pad_w, p.dilation_w),
          .images = p.n,
          .groups = p.groups,
          .source_channels = p.ic / p.groups,
          .output_channels = p.oc / p.groups,
          .kernel_rows = p.kh,
          .kernel_columns = kw_in_k ? 1 : p.kw,
          .kw_in_k = kw_in_k,
          .dtype = p.dtype,
          .format = p.format,
          .source_gap = p.x_gap,
          .output_gap = p.y_gap};
}

TapConv dgrad_taps(const ConvProblem& problem, bool by_pixel) {
  const ConvProblem p = linearised(problem, by_pixel);
  return {.y = dgrad_axis(p.ih, p.oh, p.kh, p.stride_h, p.pad_h, p.dilation_h),
          .x = dgrad_axis(p.iw, p.ow, p.kw, p.stride_w, p.pad_w, p.dilation_w),
          .images = p.n,
          .groups = p.groups,
          .source_channels = p.oc / p.groups,
          .output_channels = p.ic / p.groups,
          .kernel_rows = p.kh,
          .kernel_columns = p.kw,
          .kw_in_k = false,
          .dtype = p.dtype,
          .format = p.format,
          .source_gap = 0,
          .output_gap = 0};
}

namespace {

int64_t most_taps(const TapConv& conv) {
  const int64_t rows = conv.y.most_taps(), columns = conv.kw_in_k ? 1 : conv.x.most_taps();
  return std::max<int64_t>(1, rows * columns);
}

/// Source channels that one pass adds up: as many as B of all taps has room for in its share of L2,
/// since each further pass loads and stores all sums again. (A third of 1 MiB takes 3×3 of 512
/// channels in bf16 in one pass.)
int64_t pass_of_k(const TapPlan& b) {
  if (b.strips) return b.k;
  const int64_t fit = cache::panel_of_taps() / (b.terms * b.max_taps * b.gemm->nr * b.item);
  const int64_t line = std::max<int64_t>(b.gemm->k_multiple, 64 / b.item);
  if (fit >= b.k) return b.k;
  return std::min(b.k, round_up(even_piece(b.k, std::max(fit, line)), line));
}

/// What a step of a tile (GemmTile::prefetch) reads of A, in whole cache lines.
int64_t step_of_source(const TapPlan& b) {
  const bool dense = b.in_place && b.max_taps == 1 && b.a_pixel == b.k && b.k_block == b.k;
  return dense ? round_up(b.gemm->mr * 2 * b.gemm->kr * b.item, 64) : 0;
}

/// Groups of few channels are copied some at a time, in rows of whole cache lines.
int64_t groups_to_copy(const TapPlan& b) {
  const bool apart = b.in_place || b.strips || b.conv.kw_in_k || b.k != b.conv.k() || b.panels > 1;
  return apart ? 1 : std::clamp<int64_t>(cache::kCopiedGroups / (b.k * b.item), 1, b.conv.groups);
}

/// Where few blocks leave each to many cells, all read one copy instead of making one each; not
/// where all copies together are far from fitting in L2, in which a cell finds its own.
int64_t items_to_share(const TapPlan& b) {
  if (b.in_place || b.parts == 1) return 0;
  const int64_t items = b.scratch_items(b.grid[0]);
  return b.grid.count() * b.conv.groups * items * b.item <= cache::shared_sources() ? items : 0;
}

/// Of no fewer pixels than a tile, and long enough to be worth taking.
int64_t pieces_of_cell(const TapPlan& b) {
  const int64_t rows = b.grid.block_rows;
  const int64_t pixels = b.grid.block_images * rows * b.conv.x.longest_phase();
  const int64_t channels = ceil_div(b.panels, b.parts) * b.gemm->nr;
  const int64_t worth = pixels * channels * b.k * b.max_taps / (4 * kWorthACell);
  return std::clamp<int64_t>(std::min({worth, rows, pixels / b.gemm->mr}), 1, 8);
}

/// Are tiles of the batch-reduce GEMM to go by strips (strips.cpp)?
bool takes_strips(const ConvChoice& choice) {
  return choice.gemm->run_strip != nullptr && choice.problem.format == MemoryFormat::channels_last;
}

/// The source rows that a block reads are to be few: where dilated taps skip more rows than scratch
/// has room for, each has rows of its own.
TapConv without_skipped_rows(const ConvChoice& choice, TapConv conv) {
  const Axis& y = conv.y;
  if (takes_strips(choice) || y.dilation == 1 || y.phases() != 1) return conv;
  const GemmKernel& gemm = *choice.gemm;
  const int64_t position =
      padded_k(gemm, conv.k()) * itemsize(gemm.a) * term_copies(choice.bf16_terms);
  const int64_t fit = cache::source_block() / (Scratch(conv.y, conv.x, 1).width * position);
  const int64_t rows = std::clamp<int64_t>((fit - y.reach) / y.stretch, 1, y.output);
  if (y.planes * y.extent(rows) > y.phase(0).taps * rows) conv.y = with_plane_a_tap(y);
  return conv;
}

/// Does each neighbour of a source pixel stand for an output? Then tiles can run on over the end of
/// a row where it lies.
bool neighbours_are_outputs(const TapConv& conv) {
  const bool one_tap = most_taps(conv) == 1 && !conv.kw_in_k;
  return one_tap && conv.x.stride() == 1 && conv.y.stride() == 1;
}

}  // namespace

bool TapPlan::lies_as_a(int64_t gap) const {
  return bf16_terms == 0 && (conv.format == MemoryFormat::channels_last || source_total == 1) &&
         (!conv.kw_in_k || (conv.groups == 1 && gap == 0)) && k == conv.k() &&
         !rows_collide(*gemm, source_total * conv.x.stride());
}

bool TapPlan::reads_cut_rows(int64_t gap) const {
  const bool few = conv.kw_in_k || panels <= cache::panels_without_copy();
  return few && lies_as_a(gap) && k_block == k && conv.source_channels % gemm->k_multiple == 0;
}

bool TapPlan::reads_in_place(int64_t gap) const {
  // Rows of taps that fall on padding are left out; single taps only where rows are cut.
  const bool left_out = !row_pieces.empty() && reads_cut_rows(gap);
  return lies_as_a(gap) && (left_out || conv.x.reads_no_padding(gap));
}

/// Not where tiles would leave a remainder in each row of x, which another convolution writes.
int64_t TapPlan::wanted_gap() const {
  const ConvProblem& p = problem;
  const bool wanted = !strips && p.pad_w > 0 && p.iw % gemm->mr == 0 && reads_in_place(p.pad_w);
  return wanted ? p.pad_w : 0;
}

TapPlan::TapPlan(const ConvChoice& choice)
    : ConvPlan(choice),
      conv(without_skipped_rows(choice, pass == ConvPass::dgrad
                                            ? dgrad_taps(problem, takes_strips(choice))
                                            : forward_taps(problem, takes_strips(choice)))),
      strips(takes_strips(choice)),
      item(itemsize(gemm->a)),
      terms(term_copies(bf16_terms)),
      source_total(conv.groups * conv.source_channels),
      output_total(conv.groups * conv.output_channels),
      source_strides(conv.format, source_total, conv.y.source, conv.x.source, conv.source_gap),
      out_strides(conv.format, output_total, conv.y.output, conv.x.output, conv.output_gap),
      k(padded_k(*gemm, conv.k())),
      max_taps(most_taps(conv)),
      k_block(pass_of_k(*this)),
      panels(panel_count(*gemm, conv.output_channels)),
      row_pieces(cut_row()),
      in_place(!problem.maps && reads_in_place(conv.source_gap) &&
               (!strips || neighbours_are_outputs(conv))),
      copied_groups(groups_to_copy(*this)),
      pitch(in_place       ? source_total
            : conv.kw_in_k ? conv.source_channels
                           : without_collisions(*gemm, copied_groups * k)),
      a_pixel(a_column()),
      output_pixel(out_strides.x * conv.x.output_step),
      source_step(step_of_source(*this)),
      grid(BlockGrid::within(
          conv.images, conv.y.longest_phase(), cache::source_block(), [&](int64_t rows) {
            const int64_t read = terms * Scratch(conv.y, conv.x, rows).image() * pitch * item;
            if (out_strides.c != 1) return read;  // a panel writes whole planes
            const int64_t written =
                rows * conv.y.phases() * conv.x.output * output_total * itemsize(conv.dtype);
            return std::max(read, written / cache::kStoredBlocks);
          })) {
  if (strips) block_for_strips();
  else block_for_panels();
}

void TapPlan::block_for_panels() {
  // Too few cells: first split the panels, then the block's images or rows.
  //
  // Cells that copy their source or sum up their outputs are not taken in pieces. Ranges of panels
  // cost little and so become more cells than are wanted: the smaller the last one, the less
  // threads wait for it.
  const bool whole = !in_place || problem.sums;
  // Of few pixels, products wait for weights, which come from L2 or beyond.
  constexpr int64_t kPixelsAWeight = 16;
  const int64_t pixels = conv.images * conv.y.longest_phase() * conv.x.longest_phase();
  const int64_t multiplications = std::max(pixels, kPixelsAWeight) * k * max_taps * output_total;
  const int64_t wanted = wanted_cells(multiplications);
  // Blocks of images are of a tile's rows at least then: not where that makes few cells.
  const int64_t tile_images = even_piece(conv.images, gemm->mr);
  by_image = 2 * panels * ceil_div(conv.images, tile_images) >= wanted && images_are_longer();
  if (by_image) {
    grid.block_images = std::max(grid.block_images, tile_images);
    grid.block_rows = grid.rows;
    a_pixel = a_image(grid.rows), output_pixel = out_strides.n;
  }
  const int64_t even =
      whole ? std::clamp<int64_t>(multiplications / (4 * kWorthACell), wanted, 64) : wanted;
  parts = std::clamp<int64_t>(ceil_div(even, grid.count()), 1, panels);
  const int64_t least_images = by_image ? tile_images : 1, least_rows = by_image ? grid.rows : 2;
  while (cells() < wanted && grid.block_images > least_images)
    grid.block_images = std::max(least_images, ceil_div(grid.block_images, 2));
  while (cells() < wanted && grid.block_rows > least_rows)
    grid.block_rows = ceil_div(grid.block_rows, 2);
  pieces = whole ? 1 : pieces_of_cell(*this);
  shared_items = items_to_share(*this);
}

/// A cell has a block of pixels and all panels, while B fits in L2 beside what tiles are completed
/// in; else a range of panels that does. Then blocks are of a strip at least: each passes over B,
/// which comes from L3.
void TapPlan::block_for_strips() {
  const int64_t mr = gemm->mr, width = conv.x.longest_phase();
  const int64_t pixels = conv.images * conv.y.longest_phase() * width;
  const int64_t wanted = wanted_cells(pixels * k * max_taps * output_total);
  parts = std::clamp(ceil_div(panel_items() * panels * item, cache::strip_weights()),
                     ceil_div(panels * gemm->nr, kStripColumns), panels);
  int64_t blocks = pixels / (8 * mr);
  if (parts == 1) {
    blocks = std::clamp(blocks, wanted, std::max<int64_t>(wanted, 64));
  } else {
    blocks = std::clamp<int64_t>(blocks, 1, ceil_div(wanted, parts));
    parts = std::clamp(ceil_div(wanted, blocks), parts, panels);
  }
  grid.block_images = std::max<int64_t>(1, ceil_div(conv.images, blocks));
  grid.block_rows = grid.rows;
  if (conv.images < blocks) grid.block_rows = ceil_div(grid.rows, ceil_div(blocks, conv.images));
  if (width == 1) grid.block_rows = std::min(grid.rows, round_up(grid.block_rows, mr));

  const int64_t position = k * item * terms;
  const int64_t halo = conv.y.reach * Scratch(conv.y, conv.x, 1).width + conv.x.reach;
  strip_tiles = std::clamp<int64_t>((cache::kStripSource / position - halo) / mr, 1, 8);
  // One tap: what a strip reads is copied just before, and is in L1 then.
  copied_rows = max_taps == 1 && parts == 1
                    ? std::clamp<int64_t>(strip_tiles * mr / width, 1, grid.block_rows)
                    : grid.block_rows;
  pieces = 1;
  shared_items = 0;
}

int64_t TapPlan::a_column() const {
  return in_place ? source_strides.x * conv.x.stride() : conv.x.stretch * pitch;
}

int64_t TapPlan::a_image(int64_t rows) const {
  return in_place ? source_strides.n : Scratch(conv.y, conv.x, rows).image() * pitch;
}

int64_t TapPlan::term_items(const Block& block) const {
  // With kw_in_k a product reads on past the last position.
  return Scratch(conv.y, conv.x, block.rows).image() * block.images * pitch + k;
}

int64_t TapPlan::tap_items(const Block& block, const Tap& y, const Tap& x) const {
  if (in_place) return y.offset * source_strides.y + x.offset * source_strides.x;
  return Scratch(conv.y, conv.x, block.rows).tap(y, x) * pitch;
}

int64_t TapPlan::pixels_of(const Block& block) const {
  int64_t rows = 0, columns = 0;
  for (int64_t i = 0; i < conv.y.phases(); ++i)
    rows += std::clamp<int64_t>(conv.y.phase(i).count - block.row, 0, block.rows);
  for (int64_t i = 0; i < conv.x.phases(); ++i) columns += conv.x.phase(i).count;
  return block.images * rows * columns;
}

int64_t TapPlan::kept_pixels() const {
  if (k_block == k) return gemm->mr;
  return grid.block_images * grid.block_rows * round_up(conv.x.longest_phase(), gemm->mr);
}

namespace {

const char* why_not(const ConvProblem& p, ConvPass pass, const GemmKernel&) {
  const TapConv conv = pass == ConvPass::dgrad ? dgrad_taps(p) : forward_taps(p);
  const Scratch row(conv.y, conv.x, 1);
  // Divided, since the product may overflow.
  int64_t left = cache::kMostScratch / itemsize(p.dtype);
  for (int64_t factor : {row.planes_y * row.planes_x, row.height, row.width, conv.source_channels})
    left /= std::max<int64_t>(factor, 1);
  if (left == 0) return "scratch for one row of outputs is over 256 MiB";
  return nullptr;
}

constexpr ConvKernel kRecords[] = {
    {
        .name = "brgemm",
        .why_not = why_not,
        .plan = [](const ConvChoice& choice) -> std::unique_ptr<const ConvPlan> {
          if (choice.pass == ConvPass::wgrad) return plan_wgrad(choice);
          return std::make_unique<const TapPlan>(choice);
        },
        .takes_gaps = true,
    },
};

}  // namespace

QUERN_KERNELS(ConvKernel, conv, kRecords)

}  // namespace quern::kernels
