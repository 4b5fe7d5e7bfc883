// The records of conv.cpp's list, declared for the files that define them.
#pragma once
#include "quern/ops/kernels/conv/conv.h"

namespace quern::kernels {
extern const ConvKernel conv_winograd_4x4;
extern const ConvKernel conv_winograd;
extern const ConvKernel conv_brgemm;
extern const ConvKernel conv_reference;
}  // namespace quern::kernels
