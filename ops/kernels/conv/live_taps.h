// Filters of which some rows or columns meet nothing but padding: 3×3 on an image of one pixel, or
// dilated by more pixels than the image has.
#pragma once
#include "quern/ops/kernels/conv/conv.h"

namespace quern::kernels {

/// A plan of `whole` by `live`, one of whole.with_live_taps(): of weights it packs what is live,
/// and gradients of the other taps are zeros.
std::unique_ptr<const ConvPlan> plan_of_live_taps(const ConvProblem& whole,
                                                  std::unique_ptr<const ConvPlan> live);

}  // namespace quern::kernels
