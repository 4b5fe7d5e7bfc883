// conv_brgemm: every convolution as batch-reduce GEMMs, forward and dgrad over taps, wgrad over
// pixels.
#include <algorithm>

#include "quern/ops/kernels/conv/taps/blocking.h"
#include "quern/ops/kernels/conv/wgrad/wgrad.h"
#include "quern/tensor/dtype.h"

namespace quern::kernels {
namespace {

/// Scratch of one row of outputs beyond this is refused.
constexpr int64_t kMaxScratch = int64_t{256} << 20;

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

constexpr ConvKernel kRecords[] = {
    {
        .name = "brgemm",
        .why_not = why_not,
        .packed_bytes = packed_weight_bytes,
        .pack = pack_weight,
        .forward =
            [](const ConvPlan& plan, const void* x, const void* packed, void* y,
               const Epilogue& epilogue, const ChannelMap& prologue) {
              run_taps(plan, forward_taps(plan.problem), x, packed, prologue, epilogue, y);
            },
        .dgrad =
            [](const ConvPlan& plan, const void* dy, const void* packed, void* dx,
               const Epilogue& epilogue) {
              run_taps(plan, dgrad_taps(plan.problem), dy, packed, {}, epilogue, dx);
            },
        .wgrad = run_wgrad,
        .wanted_gap = wanted_gap,
    },
};

}  // namespace

QUERN_KERNELS(ConvKernel, conv, kRecords)

}  // namespace quern::kernels
