// Convolutions of a chain by strips of rows: what one writes for a strip, the next one reads from
// L2. Rows that a strip shares with the one before are kept. After Goetschalckx and Verhelst,
// "Breaking High-Resolution CNN Bandwidth Barriers With Enhanced Depth-First Execution", JETCAS'19.
#pragma once
#include <cstddef>
#include <span>

#include "quern/ops/kernels/conv/conv_kernel.h"
#include "quern/tensor/parallel.h"
#include "quern/tensor/storage.h"

namespace quern::detail {

/// The way through the stages of a chain, each a convolution in channels_last of what the one
/// before writes.
class ChainStrips {
 public:
  explicit ChainStrips(std::span<const kernels::ConvProblem> stages);
  /// Is there a depthwise convolution, which does little with what it reads, and too much for L2
  /// around it? All others are to be 1×1: then a row has the same bits in any strip.
  bool pay() const { return strips_ > 0; }

  /// stage(i, p, from, to, place): the i-th convolution, of some rows of an image, which are the
  /// problem p. In the output of all images they begin at the element `place`.
  using Stage =
      FunctionRef<void(size_t, const kernels::ConvProblem&, const std::byte*, std::byte*, int64_t)>;
  /// Runs the stages on all strips of all images of x, in parallel. How these are cut depends on
  /// the number of threads, but not what is computed.
  void run(const void* x, void* y, Stage stage) const;

 private:
  class Thread;
  /// Rows of what stage i - 1 writes that are held for so many rows of what stage i writes.
  int64_t rows_held(size_t i, int64_t rows) const;
  int64_t bytes_held(int64_t rows) const;

  CachedVector<kernels::ConvProblem> stages_;  // of one image
  const int64_t images_, rows_;                // of the output
  int64_t strip_rows_, strips_ = 0;            // of an image
};

}  // namespace quern::detail
