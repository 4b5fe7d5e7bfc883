// Winograd's minimal filtering F(2×2, 3×3) [Lavin & Gray, arXiv:1509.09308]: a tile of 2×2 outputs of
// a 3×3 filter g from the 4×4 pixels d that it reads,
//
//     y = Aᵀ·[(G·g·Gᵀ) ∘ (Bᵀ·d·B)]·A
//
//          ┌ 1  0 -1  0 ┐       ┌  1   0   0 ┐
//     Bᵀ = │ 0  1  1  0 │   G = │  ½   ½   ½ │   Aᵀ = ┌ 1  1  1  0 ┐
//          │ 0 -1  1  0 │       │  ½  -½   ½ │        └ 0  1 -1 -1 ┘
//          └ 0  1  0 -1 ┘       └  0   0   1 ┘
//
// takes 16 multiplications where the definition takes 36. Summed over source channels, each of the 16
// places of a tile ("points") is a matrix product over tiles × channels; around them these transforms,
// a record an instruction set. Channels are innermost. Seen by files with ISA flags.
#pragma once
#include <cstdint>

#include "quern/tensor/types.h"

namespace quern::kernels {

/// Neighbouring tiles of a row, in an image and as 16 matrices. Strides count floats.
struct WinogradTiles {
  const float* from;
  float* to;
  int64_t row, pixel;   // the image's; a tile starts 2·pixel after the one before
  int64_t point, tile;  // of the matrices [point][tile][channel]
  int64_t tiles, channels;
};

/// Filters [filter][tap][column], and as 16 matrices [point][filter][column].
struct WinogradFilters {
  const float* from;
  float* to;
  int64_t filter,
      tap;  // tap is negative for filters turned by 180°: the pointer is to the last then
  int64_t point, row;  // of the matrices
  int64_t filters, columns;
};

struct WinogradKernel {
  const char* name;  // conv_winograd_<isa>
  Isa isa;
  void (*source)(const WinogradTiles&);    // 4×4 pixels d to Bᵀ·d·B
  void (*weight)(const WinogradFilters&);  // 3×3 taps g to G·g·Gᵀ
  void (*output)(const WinogradTiles&);    // m to 2×2 pixels Aᵀ·m·A
  // Transposed, for the gradient of the weight (winograd_wgrad.cpp).
  void (*output_gradient)(const WinogradTiles&);    // 2×2 pixels dy to A·dy·Aᵀ
  void (*weight_gradient)(const WinogradFilters&);  // m to 3×3 taps Gᵀ·m·G
};

}  // namespace quern::kernels
