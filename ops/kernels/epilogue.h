// What a convolution does besides, to data that passes through its hands anyway: a batch norm and
// relu around it cost no pass over memory of their own. One structure from the call (conv/conv.h)
// to the tile (gemm/gemm_kernel.h). Seen by files with ISA flags.
#pragma once
#include <cstdint>

namespace quern::kernels {

/// What a batch norm makes of a channel: v ↦ (v - center)·scale + shift, [channels] each, f32 (f64
/// for f64). All or none, unless told otherwise.
///
/// As a prologue, how each channel of x is read: then at least 0, the batch norm and relu before
/// the convolution, never stored. Zero padding stays zero. Rounded to x's dtype, as the composition
/// is.
struct ChannelMap {
  const void *center = nullptr, *scale = nullptr, *shift = nullptr;
};

/// What becomes of the sums on their way out. Whatever is null is left out.
struct Epilogue {
  enum class Kind : uint8_t {
    store,  // out = sum
    /// out = sum + map.shift + residual, at least 0 if relu: a bias, or a batch norm folded into
    /// the weight
    activate,
    /// out = sum; first and second are the mean and Σ(v - mean)² of the sums over images and
    /// pixels, before they are rounded, merged in fixed order as those of batch_norm_stats
    moments,
    /// out = dz = sum + residual where a batch norm and relu of x passed it on,
    /// (x - center)·scale + shift > 0 by map, else 0; first = Σdz and second = Σdz·(x - center),
    /// which the batch norm's gradient is made of
    gradient,
  } kind = Kind::store;
  bool relu = false;
  ChannelMap map = {};
  const void *residual = nullptr,
             *x = nullptr;                   // like the output, of which residual may be the memory
  void *first = nullptr, *second = nullptr;  // f64 [channels]

  // Of a tile, whose pointers are to what belongs to its first row and column. first and second are
  // of the type of the sums: += Σ(sum - center) and Σ(sum - center)² by map.center for
  // moments, += what they are for a gradient.
  void* out = nullptr;  // may be the sums themselves
  int64_t stride = 0;   // elements between rows of out, residual and x
  int64_t jump = 0;     // GemmTile's, of out, residual and x
  bool wide = false;    // out, residual and x are of the type of the sums, else of the operands'
};

}  // namespace quern::kernels
