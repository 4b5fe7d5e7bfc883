// What the steps of this lesson share: the operands, and the form of a step.
#pragma once
#include <cstdint>

#include "quern/tensor/bfloat16.h"
#include "quern/tensor/types.h"

namespace quern::lessons {

struct Size {
  int64_t m, n, k;
};

/// Rows of elements, each `stride` elements after the one before: x[i][j] is row i, column j.
template <class T>
struct Matrix {
  T* data;
  int64_t stride;
  T* operator[](int64_t i) const { return data + i * stride; }
  /// What begins at row i, column j.
  Matrix from(int64_t i, int64_t j) const { return {data + i * stride + j, stride}; }
};

/// A step: C += A·B, for A[m×k], B[k×n] and C[m×n].
template <class T>
using Gemm = void(Size, Matrix<const T> a, Matrix<const T> b, Matrix<float> c);

Gemm<float> three_loops, loop_order, cache_blocks, packing, register_tile, wide_tile;
Gemm<bfloat16> pairs, amx_tiles;
Gemm<float> threads_f32, library_f32;
Gemm<bfloat16> threads_bf16, library_bf16;

// What a step needs of the CPU.
#ifdef __aarch64__
inline constexpr Isa kVectorIsa = Isa::portable, kWideIsa = Isa::neon, kPairIsa = Isa::neon_bf16;
#else
inline constexpr Isa kVectorIsa = Isa::avx2, kWideIsa = Isa::avx512, kPairIsa = Isa::avx512_bf16;
#endif
/// Has this CPU the instructions of amx_tiles? Else plain loops take their place.
bool has_amx();

}  // namespace quern::lessons
