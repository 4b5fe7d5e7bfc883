// The gradient of the weight by micro-kernels that sum over pixels.
#pragma once
#include "quern/ops/kernels/conv/conv.h"

namespace quern::kernels {

/// On outer products where channels are innermost and the micro-kernel offers them (outer.cpp),
/// else with operands transposed (transposed.cpp).
void run_wgrad(const ConvPlan& plan, const void* x, const void* dy, void* dw,
               const ChannelMap& map);

}  // namespace quern::kernels
