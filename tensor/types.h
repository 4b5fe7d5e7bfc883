// The enumerations that every layer shares, kernels compiled with ISA flags included. Nothing else
// belongs here: such a file may see fixed-width integers and this, and no template of std.
#pragma once
#include <cstdint>

namespace quern {

/// Element types, in promotion order: the result of a binary op has the larger of the two, of f16
/// and bf16 f32. f16 is storage: it is copied, converted, gathered and scattered,
/// and no op computes in it.
enum class DType : uint8_t { boolean, u8, i32, i64, f16, bf16, f32, f64 };

/// What a layer has after its batch norm (ops/activation.h).
enum class Activation : uint8_t { none, relu, relu6, silu, hardswish };

/// Instruction sets, by architecture worst first. Each of x86 contains those before it; on Arm a
/// CPU may have sve without neon_bf16.
enum class Isa : uint8_t {
  portable,
  avx2,
  avx512,
  avx512_bf16,
  amx,
  neon,
  neon_bf16,
  sve,
  sve_bf16
};

}  // namespace quern
