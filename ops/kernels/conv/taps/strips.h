// The engine of forward and dgrad by strips.
#pragma once
#include "quern/ops/kernels/conv/taps/taps.h"

namespace quern::kernels {

struct StripOperands {
  const void *source, *packed;
  void* output;
  ChannelMap map;
};
/// Runs a plan of strips, which is one of operands of bf16.
void run_strips(const TapPlan& plan, const StripOperands& operands, const Epilogue& epilogue);

}  // namespace quern::kernels
