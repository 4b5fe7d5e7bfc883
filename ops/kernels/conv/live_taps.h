// Filters of which some rows or columns meet nothing but padding: 3×3 on an image of one pixel, or
// dilated by more pixels than the image has.
#pragma once
#include "quern/ops/kernels/conv/conv.h"
#include "quern/ops/kernels/work.h"

namespace quern::kernels {

/// Rows and columns of the filter that meet a pixel of x.
struct LiveTaps {
  Extent rows, columns;
};
LiveTaps live_taps(const ConvProblem& problem);

/// The same convolution by these alone: what is cut off reads padding for every output.
ConvProblem with_live_taps(const ConvProblem& problem);

/// A plan of `problem` from one of with_live_taps(problem): of weights it packs what is live, and
/// gradients of the other taps are zeros.
std::unique_ptr<const ConvPlan> plan_of_live_taps(const ConvProblem& problem,
                                                  std::unique_ptr<const ConvPlan> live);

}  // namespace quern::kernels
