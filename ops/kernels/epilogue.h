// What a convolution does besides, to data that passes through its hands anyway: a batch norm and
// relu around it cost no pass over memory of their own. One structure from the call (conv/conv.h)
// to the tile (gemm/gemm_kernel.h). Seen by files with ISA flags.
#pragma once
#include <cstdint>

#include "quern/tensor/types.h"

namespace quern::kernels {

/// What a batch norm makes of a channel: v ↦ (v - center)·scale + shift, [channels] each, f32 (f64
/// for f64). All or none, unless told otherwise.
///
/// As a prologue, how each channel of x is read: through the activation then, as the batch norm and
/// the activation before the convolution have it, never stored. Zero padding stays zero. Rounded to
/// x's dtype, as the composition is.
struct ChannelMap {
  const void *center = nullptr, *scale = nullptr, *shift = nullptr;
  Activation activation = Activation::relu;
};

/// Does it cut off what is too small or too large, and leave the rest as it is?
constexpr bool only_clamps(Activation a) {
  return a == Activation::none || a == Activation::relu || a == Activation::relu6;
}

/// What becomes of the sums on their way out. Whatever is null is left out.
struct Epilogue {
  enum class Kind : uint8_t {
    store,  // out = sum
    /// out = activation(sum + map.shift + residual): a bias, or a batch norm folded into the weight
    activate,
    /// out = sum; first and second are the mean and Σ(v - mean)² of the sums over images and
    /// pixels, before they are rounded, merged in fixed order as those of batch_norm_stats
    moments,
    /// out = dz = (sum + residual)·(the slope of map's activation at (x - center)·scale + shift):
    /// the gradient that a batch norm of x gets; first = Σdz and second = Σdz·(x - center), which
    /// its own is made of
    gradient,
  } kind = Kind::store;
  Activation activation = Activation::none;
  ChannelMap map = {};
  const void *residual = nullptr,
             *x = nullptr;                   // like the output, of which residual may be the memory
  void *first = nullptr, *second = nullptr;  // f64 [channels]

  // Of a tile, whose pointers are to what belongs to its first row and column. first and second are
  // of the type of the sums: += Σ(sum - center) and Σ(sum - center)² by map.center for
  // moments, += what they are for a gradient.
  void* out = nullptr;   // may be the sums themselves
  int64_t stride = 0;    // elements between rows of out, residual and x
  bool wide = false;     // out, residual and x are of the type of the sums, else of the operands'
  bool streams = false;  // may out bypass the caches (cache::bypassed)? Rows are whole lines then
  bool waits = true;     // for memory, unless what it reads and writes was prefetched?
};

}  // namespace quern::kernels
