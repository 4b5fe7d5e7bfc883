// conv_winograd and conv_winograd_4x4: 3×3 convolutions of f32 by F(2×2, 3×3) and F(4×4, 3×3),
// winograd_kernel.h.
//
//   for each cell (block of images and rows of tiles, range of panels), in parallel
//     copy the block of the source to zero-padded scratch, transform it:
//       V[point][tile][source channel]                      aims at ¾ of L2
//     for each panel of nr output channels
//       for each point, run of mr tiles
//         M[point][tile][nr] = V[point] · U[panel][point]
//       for each row of tiles
//         its rows of outputs in L1, transformed from M; the epilogue, the store   conv/epilogue
//
// Where blocks are so few that cells share one, V is made first, of all blocks.
#include "quern/ops/kernels/conv/winograd/winograd.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "quern/ops/kernels/blocking.h"
#include "quern/ops/kernels/conv/blocks.h"
#include "quern/ops/kernels/conv/conv.h"
#include "quern/ops/kernels/conv/epilogue/epilogue.h"
#include "quern/ops/kernels/gemm/micro_kernel.h"
#include "quern/tensor/dtype.h"
#include "quern/tensor/parallel.h"
#include "quern/tensor/per_thread.h"
#include "quern/tensor/span.h"

namespace quern::kernels {
namespace {

constexpr int64_t kFloat = sizeof(float);
constexpr int64_t kVector = 16;  // floats of the longest vector, and of a cache line

/// Source channels that F(4×4, 3×3) adds up at a time, a multiple of any k_multiple. Its transforms
/// magnify the rounding of sums: of these, its errors are 8e-7 by norm for any number of channels,
/// 1.9 (64 channels) to 1.2 times (512) those of the definition; of all 512 at once they would be
/// 2e-6.
constexpr int64_t kLongestSum = 64;

class WinogradEngine {
 public:
  WinogradEngine(const WinogradPlan& plan, const void* source, const void* packed,
                 const ChannelMap& map, const Epilogue& epilogue, void* output)
      : plan_(plan),
        conv_(plan.conv),
        gemm_(*plan.gemm),
        source_(static_cast<const float*>(source)),
        packed_(static_cast<const float*>(packed)),
        map_(map),
        read_or_written_{static_cast<const float*>(output),
                         static_cast<const float*>(epilogue.residual),
                         static_cast<const float*>(epilogue.x)},
        output_(stored(epilogue), gemm_, plan.out_strides, plan.out_strides.x, plan.problem.n,
                conv_.output_channels, plan.grid.count(), static_cast<float*>(output)),
        scratch_(Scratch(conv_.y, conv_.x, conv_.tile * plan.grid.block_rows).image() * plan.pitch),
        m_(conv_.points() * point_stride(plan.tiles(plan.grid[0]), plan.out_pitch)),
        rows_(conv_.tile * conv_.tile * conv_.tile_columns() * plan.out_pitch),
        completed_(output_.scratch_items(PanelSums<float>::kRows)) {}

  void run() const {
    const int64_t blocks = plan_.grid.count(),
                  items = v_items(plan_.grid[0]);  // of the largest block
    if (plan_.parts == 1) {
      const PerThread<float> v(items);
      parallel_for(blocks, [&](int64_t i) {
        transform_source(plan_.grid[i], v.get());
        multiply(i, 0, v.get());
      });
    } else {
      const Workspace v(blocks * items * kFloat);
      const auto of = [&](int64_t i) { return v.as<float>() + i * items; };
      parallel_for(blocks, [&](int64_t i) { transform_source(plan_.grid[i], of(i)); });
      parallel_for(blocks * plan_.parts, [&](int64_t cell) {
        multiply(cell / plan_.parts, cell % plan_.parts, of(cell / plan_.parts));
      });
    }
    output_.merge([&](int64_t i) {
      const Block block = plan_.grid[i];
      const int64_t rows = std::min(conv_.tile * block.rows, conv_.height - conv_.tile * block.row);
      return block.images * rows * conv_.width;
    });
  }

 private:
  /// The sums never lie in the output, so that nothing is stored without an epilogue.
  static Epilogue stored(Epilogue epilogue) {
    using Kind = Epilogue::Kind;
    if (epilogue.kind == Kind::store) epilogue.kind = Kind::activate;
    return epilogue;
  }
  /// From a point's matrix to the next: a cache line more, so that they lie in different sets.
  static int64_t point_stride(int64_t tiles, int64_t pitch) { return tiles * pitch + kVector; }
  int64_t v_items(const Block& block) const {
    return conv_.points() * point_stride(plan_.tiles(block), plan_.pitch);
  }

  void transform_source(const Block& block, float* v) const;
  void multiply(int64_t block_index, int64_t part, const float* v) const;
  Prefetch prefetch_of(int64_t block_index, int64_t panel, const Extent& panels) const;
  void store_panel(const Block& block, int64_t panel, PanelSums<float>& sums) const;

  const WinogradPlan& plan_;
  const WinogradConv& conv_;
  const GemmKernel& gemm_;
  const float *source_, *packed_;
  const ChannelMap map_;
  const float* read_or_written_[3];  // read or written where an output is; null: not
  const TileOutput<float> output_;
  const PerThread<float> scratch_;    // an image of a block, padded
  const PerThread<float> m_;          // of a panel
  const PerThread<float> rows_;       // outputs of a row of tiles
  const PerThread<float> completed_;  // what output_ takes
};

/// Rows of tiles of a block, an image's after the other's, to V.
void WinogradEngine::transform_source(const Block& block, float* v) const {
  const PartSpan part("transform_source");
  const Scratch layout(conv_.y, conv_.x, conv_.tile * block.rows);
  const int64_t padding = plan_.pitch - conv_.source_channels;
  float* pixels = scratch_.get();
  for (int64_t i = 0; padding > 0 && i < layout.image(); ++i)
    std::fill_n(pixels + i * plan_.pitch + conv_.source_channels, padding, 0.0f);
  for (int64_t image = 0; image < block.images; ++image) {
    copy_block({.item = kFloat,
                .strides = plan_.source_strides,
                .channels = conv_.source_channels,
                .position_stride = plan_.pitch,
                .channel_stride = 1,
                .map = map_},
               conv_.y, conv_.x,
               {.image = block.image + image,
                .images = 1,
                .row = conv_.tile * block.row,
                .rows = conv_.tile * block.rows},
               source_, pixels);
    for (int64_t row = 0; row < block.rows; ++row)
      plan_.transforms.source({.from = pixels + conv_.tile * row * layout.width * plan_.pitch,
                               .to = v + plan_.tiles(image * block.rows + row) * plan_.pitch,
                               .row = layout.width * plan_.pitch,
                               .pixel = plan_.pitch,
                               .point = point_stride(plan_.tiles(block), plan_.pitch),
                               .tile = plan_.pitch,
                               .tiles = conv_.tile_columns(),
                               .channels = round_up(conv_.source_channels, kVector)});
  }
}

void WinogradEngine::multiply(int64_t block_index, int64_t part, const float* v) const {
  const Block block = plan_.grid[block_index];
  const int64_t count = plan_.tiles(block), step = even_piece(count, gemm_.mr);
  const int64_t v_point = point_stride(count, plan_.pitch),
                m_point = point_stride(count, plan_.out_pitch);
  const int64_t matrix = panel_elements(gemm_, conv_.source_channels);
  const int64_t channels = padded_k(gemm_, conv_.source_channels);
  const int64_t longest_sum = conv_.tile == 2 ? channels : kLongestSum;
  const Extent panels = piece(plan_.panels, plan_.parts, part);
  for (int64_t panel = panels.begin; panel < panels.begin + panels.size; ++panel) {
    const int64_t channel = panel * gemm_.nr;
    const int64_t n = std::min<int64_t>(gemm_.nr, conv_.output_channels - channel);
    Prefetch prefetch = prefetch_of(block_index, panel, panels);
    for (int64_t point = 0; point < conv_.points(); ++point) {
      const float* u = packed_ + (panel * conv_.points() + point) * matrix;
      for (int64_t i = 0; i < count; i += step) {
        for (int64_t k = 0; k < channels; k += longest_sum) {
          const void* a = v + point * v_point + i * plan_.pitch + k;
          const void* b = u + k * gemm_.nr;
          const int64_t length = std::min(longest_sum, channels - k);
          const Prefetch::Lines lines = prefetch.next(length / 2, b);
          gemm_.run({.m = std::min(step, count - i),
                     .n = n,
                     .k = length,
                     .batch = 1,
                     .a = &a,
                     .lda = plan_.pitch,
                     .b = &b,
                     .prefetch = lines.at,
                     .prefetch_step = lines.step,
                     .c = m_.get() + point * m_point + i * plan_.out_pitch,
                     .ldc = plan_.out_pitch,
                     .accumulate = k > 0});
        }
      }
    }
    PanelSums<float> sums = output_.sums(block_index, channel, n);
    store_panel(block, panel, sums);
    sums.flush();
  }
}

/// What the tiles of a panel prefetch: all that its epilogue reads and writes, and a share of the
/// next block's source.
Prefetch WinogradEngine::prefetch_of(int64_t block_index, int64_t panel,
                                     const Extent& panels) const {
  Prefetch prefetch;
  const Block block = plan_.grid[block_index];
  const int64_t channel = panel * gemm_.nr, top = conv_.tile * block.row;
  const int64_t n = std::min<int64_t>(gemm_.nr, conv_.output_channels - channel);
  const int64_t rows = std::min(conv_.tile * block.rows, conv_.height - top);
  for (const float* base : read_or_written_)
    if (base)
      prefetch.add(base, kFloat, plan_.out_strides, {channel, n},
                   {block.image, block.images, top, rows});
  if (plan_.parts > 1 || block_index + 1 == plan_.grid.count()) return prefetch;
  const Block next = plan_.grid[block_index + 1];
  const int64_t begin = std::max<int64_t>(0, conv_.tile * next.row + conv_.y.lead);
  const int64_t end =
      std::min(conv_.y.source, conv_.tile * (next.row + next.rows) + conv_.y.lead + 2);
  if (begin >= end) return prefetch;
  if (plan_.source_strides.c != 1) {
    prefetch.add(source_, kFloat, plan_.source_strides,
                 piece(conv_.source_channels, panels.size, panel - panels.begin),
                 {next.image, next.images, begin, end - begin});
    return prefetch;
  }
  const Extent share = piece(((next.images - 1) * conv_.y.source + end - begin) * conv_.x.source,
                             panels.size, panel - panels.begin);
  prefetch.add(source_ + next.image * plan_.source_strides.n + begin * plan_.source_strides.y +
                   share.begin * plan_.source_strides.x,
               conv_.source_channels * kFloat, plan_.source_strides.x * kFloat, share.size);
  return prefetch;
}

/// A panel's M to outputs, a row of tiles at a time.
void WinogradEngine::store_panel(const Block& block, int64_t panel, PanelSums<float>& sums) const {
  const float* m = m_.get();
  float* rows = rows_.get();
  const int64_t channel = panel * gemm_.nr, columns = conv_.tile * conv_.tile_columns();
  const int64_t n = std::min<int64_t>(gemm_.nr, conv_.output_channels - channel);
  for (int64_t i = 0; i < block.images * block.rows; ++i) {
    plan_.transforms.output({.from = m + plan_.tiles(i) * plan_.out_pitch,
                             .to = rows,
                             .row = columns * plan_.out_pitch,
                             .pixel = plan_.out_pitch,
                             .point = point_stride(plan_.tiles(block), plan_.out_pitch),
                             .tile = plan_.out_pitch,
                             .tiles = conv_.tile_columns(),
                             .channels = plan_.out_pitch});
    const int64_t image = block.image + i / block.rows,
                  top = conv_.tile * (block.row + i % block.rows);
    for (int64_t row = 0; row < std::min<int64_t>(conv_.tile, conv_.height - top); ++row)
      for (int64_t x = 0; x < conv_.width; x += PanelSums<float>::kRows)
        output_.complete_sums(rows + (row * columns + x) * plan_.out_pitch, plan_.out_pitch,
                              std::min(PanelSums<float>::kRows, conv_.width - x), n, channel,
                              image * plan_.out_strides.n + (top + row) * plan_.out_strides.y +
                                  x * plan_.out_strides.x + channel * plan_.out_strides.c,
                              completed_.get(), sums);
  }
}

bool switched_off() {
  static const bool off = [] {
    const char* value = std::getenv("QUERN_WINOGRAD");
    const std::string_view word = value == nullptr ? "" : value;
    check(word.empty() || word == "0" || word == "1", "conv2d",
          "QUERN_WINOGRAD: expected 0 or 1, got \"{}\"", word);
    return word == "0";
  }();
  return off;
}

/// Why not, although they can: where conv_brgemm is as fast, or faster.
const char* why_not(const ConvProblem& p, ConvPass pass, const GemmKernel& gemm) {
  if (switched_off()) return "QUERN_WINOGRAD=0";
  if (const char* reason = why_winograd_cannot(p, pass, gemm)) return reason;
  if (std::min(p.ic, p.oc) < 32) return "transforms of few channels cost more than they save";
  // The transformed weight is 16/9 of the weight, to be read, or, for wgrad, to be written, which
  // takes more tiles to pay.
  const WinogradConv conv(p, pass, 2);
  if (conv.images * conv.tile_rows() * conv.tile_columns() < (pass == ConvPass::wgrad ? 32 : 4))
    return "few tiles take longer to read or write the transformed weight";
  return nullptr;
}

/// And why not with tiles of 4×4 where those of 2×2 are good. Images that these cover badly (14×14
/// pixels take 16×16) gain little; few tiles in an image save less time than it takes to transform
/// the weight after each step of training.
const char* why_not_4x4(const ConvProblem& p, ConvPass pass, const GemmKernel& gemm) {
  if (pass == ConvPass::wgrad) return "gradients of the weight are computed by F(2×2, 3×3)";
  if (const char* reason = why_not(p, pass, gemm)) return reason;
  const auto tiles = [&](int64_t outputs) {
    const WinogradConv conv(p, pass, outputs);
    return conv.tile_rows() * conv.tile_columns();
  };
  if (tiles(4) < 16) return "few tiles take longer to transform the weight";
  if (3 * 36 * tiles(4) > 2 * 16 * tiles(2)) return "tiles of 4×4 reach far beyond the output";
  return nullptr;
}

template <int tile>
double saving(const ConvProblem& p, ConvPass pass) {
  const WinogradConv conv(p, pass, tile);
  return static_cast<double>(9 * conv.height * conv.width) /
         static_cast<double>(conv.points() * conv.tile_rows() * conv.tile_columns());
}

template <int tile>
std::unique_ptr<const ConvPlan> plan(const ConvChoice& choice) {
  if (choice.pass == ConvPass::wgrad) return plan_winograd_wgrad(choice);
  return std::make_unique<const WinogradPlan>(choice, tile);
}

constexpr ConvKernel kRecords[] = {
    {.name = "winograd_4x4", .why_not = why_not_4x4, .plan = plan<4>, .saving = saving<4>},
    {.name = "winograd", .why_not = why_not, .plan = plan<2>, .saving = saving<2>},
};

}  // namespace

QUERN_KERNELS(ConvKernel, conv, kRecords)

WinogradPlan::WinogradPlan(const ConvChoice& choice, int64_t tile)
    : ConvPlan(choice),
      conv(problem, pass, tile),
      transforms(select_winograd_transforms(tile)),
      source_strides(problem.format, conv.source_channels, conv.y.source, conv.x.source),
      out_strides(problem.format, conv.output_channels, conv.height, conv.width),
      pitch(without_collisions(*gemm, round_up(conv.source_channels, kVector))),
      out_pitch(round_up(gemm->nr, kVector)),
      panels(panel_count(*gemm, conv.output_channels)),
      grid(BlockGrid::within(
          conv.images, conv.tile_rows(), cache::winograd_block(),
          [&](int64_t rows) { return tiles(rows) * conv.points() * pitch * kFloat; })),
      parts(std::clamp<int64_t>(
          ceil_div(wanted_cells(conv.images * tiles(conv.tile_rows()) * conv.points() *
                                conv.source_channels * conv.output_channels),
                   grid.count()),
          1, panels)) {}

void WinogradPlan::compute(const void* source, const void* packed, void* output,
                           const Epilogue& epilogue, const ChannelMap& map) const {
  WinogradEngine(*this, source, packed, map, epilogue, output).run();
}

}  // namespace quern::kernels
