// A convolution as its kernels see it, and what a kernel offers.
#pragma once
#include <compare>
#include <cstdint>
#include <memory>
#include <string>

#include "quern/ops/kernels/accumulator.h"
#include "quern/ops/kernels/epilogue.h"
#include "quern/ops/kernels/gemm/gemm_kernel.h"
#include "quern/ops/kernels/unit.h"
#include "quern/ops/kernels/work.h"
#include "quern/tensor/memory_format.h"

namespace quern::kernels {

/// Rows and columns of a filter.
struct LiveTaps {
  Extent rows, columns;
};

struct ConvProblem {
  int64_t n;
  int64_t ic, ih, iw;  // x [n, ic, ih, iw]
  int64_t oc, oh, ow;  // y [n, oc, oh, ow]
  int64_t kh, kw;      // weight [oc, ic/groups, kh, kw]
  int64_t stride_h, stride_w;
  int64_t pad_h, pad_w;
  int64_t dilation_h, dilation_w;
  int64_t groups;
  DType dtype;  // of x, weight and y: f32, bf16 or f64
  MemoryFormat format;
  /// Of forward in channels_last: pixels of memory after each row. Those of x are zeros, as are as
  /// many before its first row.
  int64_t x_gap = 0, y_gap = 0;
  /// Is x read through a prologue? Has the epilogue sums a channel (Epilogue::first)?
  bool maps = false, sums = false;

  /// "mb16_ic64oc64_ih56oh56kh3sh1dh0ph1_iw56ow56kw3sw1dw0pw1", the field's notation; dh is
  /// dilation_h - 1.
  std::string to_string() const;
  int64_t flop() const;   ///< multiplications and additions, by the definition
  int64_t bytes() const;  ///< of x, weight and y
  /// Those that meet a pixel of x for some output; all if none does.
  LiveTaps live_taps() const;
  /// The same convolution by these alone (live_taps.h).
  ConvProblem with_live_taps() const;
  auto operator<=>(const ConvProblem&) const = default;
};

/// Where element (n, c, y, x) of an image tensor lies: dense in either format, which are one for
/// single pixels, or in channels_last with a gap of some pixels after each row.
struct ImageStrides {
  int64_t n, c, y, x;  // in elements

  ImageStrides(MemoryFormat format, int64_t channels, int64_t height, int64_t width,
               int64_t gap = 0)
      : n(channels * height * (width + gap)) {
    if (format == MemoryFormat::channels_last || height * width == 1)
      c = 1, x = channels, y = (width + gap) * channels;
    else c = height * width, y = width, x = 1;
  }
};

enum class ConvPass : uint8_t { forward, dgrad, wgrad };

struct ConvChoice;
class ConvPlan;

/// A way to convolve.
struct ConvKernel {
  const char* name;
  /// Why it does not take the pass of this problem on that tile; null if it does.
  const char* (*why_not)(const ConvProblem&, ConvPass, const GemmKernel&);
  /// Decides the rest, for a choice of this kernel.
  std::unique_ptr<const ConvPlan> (*plan)(const ConvChoice&);
  /// How many times the multiplications of this pass conv_brgemm has; null: as many.
  double (*saving)(const ConvProblem&, ConvPass) = nullptr;
  bool takes_gaps = false;       // x_gap and y_gap
  bool on_micro_kernels = true;  // else it uses none
};

}  // namespace quern::kernels
