// Any product as a convolution, for trying it in a network: im2col, the product, the epilogue.
#pragma once
#include <memory>

#include "gemm/gemm.h"
#include "quern/ops/kernels/conv/conv.h"

namespace quern::lessons {

/// For choices of f32 or bf16 without gaps between rows.
std::unique_ptr<const kernels::ConvPlan> im2col_plan(const kernels::ConvChoice& choice,
                                                     Gemm<float>* f32, Gemm<bfloat16>* bf16);

}  // namespace quern::lessons
