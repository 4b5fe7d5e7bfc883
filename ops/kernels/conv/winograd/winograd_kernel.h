// Winograd's minimal filtering F(2×2, 3×3) [Lavin & Gray, arXiv:1509.09308]: a tile of 2×2 outputs
// of a 3×3 filter g from the 4×4 pixels d that it reads,
//
//     y = Aᵀ·[(G·g·Gᵀ) ∘ (Bᵀ·d·B)]·A
//
//          ┌ 1  0 -1  0 ┐       ┌  1   0   0 ┐
//     Bᵀ = │ 0  1  1  0 │   G = │  ½   ½   ½ │   Aᵀ = ┌ 1  1  1  0 ┐
//          │ 0 -1  1  0 │       │  ½  -½   ½ │        └ 0  1 -1 -1 ┘
//          └ 0  1  0 -1 ┘       └  0   0   1 ┘
//
// takes 16 multiplications where the definition takes 36. F(4×4, 3×3) takes 36 where the definition
// takes 144, for a tile of 4×4 outputs from 6×6 pixels:
//
//          ┌ 1    0   -q    0   1  0 ┐       ┌   1    0    0  ┐
//          │ 0 -ab²  -b²    a   1  0 │       │  1/α  a/α a²/α │          ┌ 1  1   1  1   1  0 ┐
//     Bᵀ = │ 0  ab²  -b²   -a   1  0 │   G = │  1/α -a/α a²/α │     Aᵀ = │ 0  a  -a  b  -b  0 │
//          │ 0 -a²b  -a²    b   1  0 │       │  1/β  b/β b²/β │          │ 0  a²  a² b²  b² 0 │
//          │ 0  a²b  -a²   -b   1  0 │       │  1/β -b/β b²/β │          └ 0  a³ -a³ b³ -b³ 1 ┘
//          └ 0    1    0   -q   0  1 ┘       └   0    0    1  ┘
//
// with a = ⅔, b = 1/a, q = a² + b², α = 2a²(a² - b²), β = 2b²(b² - a²). It evaluates polynomials at
// 0, ±a, ±b and ∞; at the common 0, ±1, ±2 and ∞ its rounding errors are 2.3 times as large.
//
// Summed over source channels, each place of a transformed tile (a "point") is a matrix product
// over tiles × channels; around them these transforms, a record an instruction set. Channels are
// innermost. Seen by files with ISA flags.
#pragma once
#include <cstdint>

#include "quern/ops/kernels/unit.h"

namespace quern::kernels {

/// Neighbouring tiles of a row, in an image and as a matrix a point. Strides count floats.
struct WinogradTiles {
  const float* from;
  float* to;
  int64_t row, pixel;   // the image's; a tile starts outputs·pixel after the one before
  int64_t point, tile;  // of the matrices [point][tile][channel]
  int64_t tiles, channels;
};

/// Filters [filter][tap][column], and as matrices [point][filter][column].
struct WinogradFilters {
  const float* from;
  float* to;
  int64_t filter,
      tap;  // tap is negative for filters turned by 180°: the pointer is to the last then
  int64_t point, row;  // of the matrices
  int64_t filters, columns;
};

/// Elements of the matrices of F(4×4, 3×3).
struct Winograd4 {
  static constexpr double a = 2.0 / 3, a2 = a * a, a3 = a2 * a;
  static constexpr double b = 1.5, b2 = b * b, b3 = b2 * b;
  static constexpr double q = a2 + b2, alpha = 2 * a2 * (a2 - b2), beta = 2 * b2 * (b2 - a2);
};

/// Those of one size of tiles.
struct WinogradTransforms {
  int outputs;                             // of a tile, in each direction
  void (*source)(const WinogradTiles&);    // pixels d to Bᵀ·d·B
  void (*weight)(const WinogradFilters&);  // 3×3 taps g to G·g·Gᵀ
  void (*output)(const WinogradTiles&);    // m to pixels Aᵀ·m·A
  // Transposed, for the gradient of the weight (wgrad.cpp); null for 4×4 outputs.
  void (*output_gradient)(const WinogradTiles&);    // pixels dy to A·dy·Aᵀ
  void (*weight_gradient)(const WinogradFilters&);  // m to 3×3 taps Gᵀ·m·G
};

struct WinogradKernel {
  const char* name;  // winograd_<isa>
  Isa isa;
  WinogradTransforms f2, f4;
};

}  // namespace quern::kernels
