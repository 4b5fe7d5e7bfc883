// Which GEMM micro-kernel must be taken: by name, apart from the tables and the choice.
#pragma once
#include <initializer_list>
#include <string_view>

#include "built_isa.h"
#include "quern/tensor/cpu_features.h"
#include "quern/tensor/dtype.h"

namespace quern::test {

/// All that there are tiles for.
inline constexpr std::initializer_list<Isa> kGemmIsas = {
    Isa::portable, Isa::avx2,      Isa::avx512, Isa::avx512_bf16, Isa::amx,
    Isa::neon,     Isa::neon_bf16, Isa::sve,    Isa::sve_bf16};

/// Of f32, bf16 or f64, on this CPU under this cap.
inline std::string_view best_gemm(Isa cap, DType dtype) {
  struct Tile {
    Isa isa;
    std::string_view name;
  };
  const auto first = [&](std::initializer_list<Tile> best_first) {
    for (const Tile& tile : best_first)
      if (tile.isa <= cap && is_built(tile.isa)) return tile.name;
    return std::string_view("none");
  };
  if (dtype == DType::f64) return "gemm_f64_f64_f64_4x4_portable";
  if (dtype == DType::f32)
    return first({{Isa::sve, "gemm_f32_f32_f32_8x3vl_sve"},
                  {Isa::neon, "gemm_f32_f32_f32_8x12_neon"},
                  {Isa::avx512, "gemm_f32_f32_f32_14x32_avx512"},
                  {Isa::avx2, "gemm_f32_f32_f32_6x16_avx2"},
                  {Isa::portable, "gemm_f32_f32_f32_4x8_portable"}});
  bool fast_pairs = false;
#ifdef __x86_64__
  fast_pairs = __builtin_cpu_is("amd");  // Intel's vdpbf16ps is slower than widening
#endif
  return first({{Isa::sve_bf16, "gemm_bf16_bf16_f32_4x6vlk4_sve_bf16"},
                {Isa::neon_bf16, "gemm_bf16_bf16_f32_4x24k4_neon_bf16"},
                {Isa::neon, "gemm_bf16_bf16_f32_8x12k2_neon"},
                {Isa::amx, "gemm_bf16_bf16_f32_32x32k2_amx"},
                {Isa::avx512_bf16, fast_pairs ? "gemm_bf16_bf16_f32_14x32k2_avx512_bf16"
                                              : "gemm_bf16_bf16_f32_14x32k2_avx512"},
                {Isa::avx512, "gemm_bf16_bf16_f32_14x32k2_avx512"},
                {Isa::avx2, "gemm_bf16_bf16_f32_6x16k2_avx2"},
                {Isa::portable, "gemm_bf16_bf16_f32_4x8_portable"}});
}

}  // namespace quern::test
