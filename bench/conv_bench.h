// One pass of one convolution as a benchmark; for the benchmarks and for the summary of a network.
#pragma once
#include "quern/ops/kernels/conv/conv.h"
#include "suite.h"

namespace quern::bench {

struct ConvShape {
  int64_t count;  // in the network
  kernels::ConvProblem problem;
};

/// The shapes of the file, at the batch of the options. Error: a line that is none.
std::vector<ConvShape> read_conv_shapes(const Options&, DType, MemoryFormat);

/// Nobody asks for the gradient of images.
inline bool is_needed(const kernels::ConvProblem& p, kernels::ConvPass pass) {
  return pass != kernels::ConvPass::dgrad || p.ic != 3;
}

Benchmark conv_benchmark(const kernels::ConvPlan& plan);

}  // namespace quern::bench
