// How f32 is multiplied.
#pragma once
#include <string_view>

namespace quern {

/// Sets the arithmetic of matmul, linear and conv2d on f32 tensors outside autocast, forward and
/// backward, for all threads (PyTorch's name and values):
///   "highest"  IEEE f32
///   "high"     bf16x3: x ≈ hi + lo, two bf16, and a·b ≈ hi·hi + hi·lo + lo·hi summed in f32. An
///              error of at most 3·2^-16 a product beside f32's own; infinities may give NaN. Where
///              the CPU multiplies bf16 more than three times as fast as f32 (AMX), elsewhere
///              "highest".
///   "medium"   operands rounded to bf16, summed in f32: an error of at most 2^-7 a product. Where
///              the CPU multiplies bf16 faster than f32 (AMX, AMD's AVX512_BF16), elsewhere
///              "highest".
/// Convolutions for which IEEE f32 is as fast stay IEEE: those of less than 16 channels a group,
/// and where bf16 is only twice as fast those by Winograd's F(4×4, 3×3) and gradients of the weight
/// in contiguous. All tensors stay f32; operands are rounded on their way into scratch, weights
/// when they are packed.
/// The first value is "highest", or from the environment QUERN_DEFAULT_FPMATH_MODE: STRICT
/// "highest", BF16 "medium".
/// Errors: any other value, also in the environment (at first use).
void set_float32_matmul_precision(std::string_view precision);
std::string_view get_float32_matmul_precision();  ///< what was set, or the first value

}  // namespace quern
