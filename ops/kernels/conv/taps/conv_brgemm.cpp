// conv_brgemm: how problems become taps, and its record.
#include "quern/ops/kernels/conv/taps/taps.h"

#include <algorithm>
#include <numeric>

#include "quern/ops/kernels/conv/conv.h"
#include "quern/ops/kernels/conv/taps/blocking.h"
#include "quern/tensor/dtype.h"

namespace quern::kernels {
namespace {

/// Below this many source channels a product per tap would be too short.
constexpr int64_t kFoldBelow = 16;

/// Scratch of one row of outputs beyond this is refused.
constexpr int64_t kMaxScratch = int64_t{256} << 20;

bool folds(const ConvProblem& p) {
  return p.ic / p.groups < kFoldBelow && p.kw > 1 && p.dilation_w == 1;
}

const char* why_not(const ConvProblem& p, ConvPass pass, const GemmKernel&) {
  const TapConv conv = pass == ConvPass::dgrad ? dgrad_taps(p) : forward_taps(p);
  const Scratch row(conv.y, conv.x, 1);
  // Divided, since the product may overflow.
  int64_t left = kMaxScratch / itemsize(p.dtype);
  for (int64_t factor : {row.planes_y * row.planes_x, row.height, row.width, conv.source_channels})
    left /= std::max<int64_t>(factor, 1);
  if (left == 0) return "scratch for one row of outputs is over 256 MiB";
  return nullptr;
}

/// Not where tiles would leave a remainder in each row of x, which another convolution writes.
int64_t wanted_gap(const ConvPlan& plan) {
  const ConvProblem& p = plan.problem;
  const bool whole_tiles = p.iw % plan.gemm->mr == 0 || 2 * p.iw == plan.gemm->mr;
  return p.pad_w > 0 && whole_tiles && reads_in_place(plan, forward_taps(p), p.pad_w) ? p.pad_w : 0;
}

}  // namespace

Block BlockGrid::operator[](int64_t i) const {
  const int64_t image = i / row_blocks() * block_images, row = i % row_blocks() * block_rows;
  return {.image = image,
          .images = std::min(block_images, images - image),
          .row = row,
          .rows = std::min(block_rows, rows - row)};
}

bool rows_collide(const GemmKernel& gemm, int64_t stride) {
  constexpr int64_t way = 4096, associativity = 8;  // bytes of a first-level way; ways
  const int64_t sets = way / std::gcd(way, stride * itemsize(gemm.a));
  return gemm.mr > associativity * sets;
}

int64_t without_collisions(const GemmKernel& gemm, int64_t items) {
  const int64_t line = 64 / itemsize(gemm.a);
  while (rows_collide(gemm, items)) items += line;
  return items;
}

ConvProblem linearised(const ConvProblem& problem) {
  ConvProblem p = problem;
  const bool pointwise =
      p.kh == 1 && p.kw == 1 && p.stride_h == 1 && p.stride_w == 1 && p.pad_h == 0 && p.pad_w == 0;
  if (pointwise && p.format == MemoryFormat::channels_last) {
    p.ih = p.oh = p.n * p.ih;
    p.n = 1;
  }
  return p;
}

int64_t TapConv::k() const { return folded ? source_channels * (x.reach + 1) : source_channels; }

TapConv forward_taps(const ConvProblem& problem) {
  const ConvProblem p = linearised(problem);
  const bool fold = folds(p);
  return {.y = forward_axis(p.ih, p.oh, p.kh, p.stride_h, p.pad_h, p.dilation_h),
          .x = fold ? plain_forward_axis(p.iw, p.ow, p.kw, p.stride_w, p.pad_w)
                    : forward_axis(p.iw, p.ow, p.kw, p.stride_w, p.pad_w, p.dilation_w),
          .images = p.n,
          .groups = p.groups,
          .source_channels = p.ic / p.groups,
          .output_channels = p.oc / p.groups,
          .kernel_rows = p.kh,
          .kernel_columns = fold ? 1 : p.kw,
          .folded = fold,
          .dtype = p.dtype,
          .format = p.format,
          .source_gap = p.x_gap,
          .output_gap = p.y_gap};
}

TapConv dgrad_taps(const ConvProblem& problem) {
  const ConvProblem p = linearised(problem);
  return {.y = dgrad_axis(p.ih, p.oh, p.kh, p.stride_h, p.pad_h, p.dilation_h),
          .x = dgrad_axis(p.iw, p.ow, p.kw, p.stride_w, p.pad_w, p.dilation_w),
          .images = p.n,
          .groups = p.groups,
          .source_channels = p.oc / p.groups,
          .output_channels = p.ic / p.groups,
          .kernel_rows = p.kh,
          .kernel_columns = p.kw,
          .folded = false,
          .dtype = p.dtype,
          .format = p.format,
          .source_gap = 0,
          .output_gap = 0};
}

namespace {
constexpr ConvKernel kRecords[] = {
    {
        .name = "brgemm",
        .why_not = why_not,
        .packed_bytes = packed_weight_bytes,
        .pack = pack_weight,
        .forward =
            [](const ConvPlan& plan, const void* x, const void* packed, void* y,
               const ForwardFusion& fusion) {
              run_taps(plan, forward_taps(plan.problem), x, packed, fusion.source,
                       epilogue_of(fusion), y);
            },
        .dgrad =
            [](const ConvPlan& plan, const void* dy, const void* packed, void* dx,
               const DgradFusion& fusion) {
              run_taps(plan, dgrad_taps(plan.problem), dy, packed, {}, epilogue_of(fusion), dx);
            },
        .wgrad = run_wgrad,
        .wanted_gap = wanted_gap,
    },
};

}  // namespace

QUERN_KERNELS(ConvKernel, conv, kRecords)

}  // namespace quern::kernels
