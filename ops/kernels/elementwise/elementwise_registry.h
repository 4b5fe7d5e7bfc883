// The elementwise kernels: the list and the choice.
#pragma once
#include <span>
#include <string_view>

#include "quern/ops/kernels/elementwise/elementwise_kernel.h"

namespace quern::kernels {

/// Every record, for each function and dtype best first, the reference last.
std::span<const UnaryKernel* const> unary_kernels();
std::span<const BinaryKernel* const> binary_kernels();

/// The first record of this function and dtype whose ISA is enabled. `caller` is the op that errors
/// name: a dtype that the function has no kernel for.
const UnaryKernel& select_unary(std::string_view caller, Unary op, DType dtype);
const BinaryKernel& select_binary(std::string_view caller, Binary op, DType dtype);

}  // namespace quern::kernels
