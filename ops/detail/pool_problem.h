// What the pools share: checks, the tables of windows, and x in its own format as images for the
// kernels.
#pragma once
#include <string_view>

#include "quern/ops/kernels/pool/pool.h"
#include "quern/tensor/pair.h"
#include "quern/tensor/tensor.h"
#include "quern/tensor/verbose.h"

namespace quern::detail {

/// Error of `op` unless x is a floating, non-empty [N, C, H, W].
void check_pool_input(std::string_view op, const Tensor& x);

struct PoolWindow {
  Pair kernel, stride, padding, dilation;
};
/// The output's height and width. Errors of `op`: sizes < 1, padding not in 0..kernel/2, no window.
Pair pooled_size(std::string_view op, const Tensor& x, const PoolWindow& window, bool ceil_mode);

/// A pool without its data: what backward keeps.
class PoolProblem {
 public:
  PoolProblem(const Tensor& x, kernels::PoolWindows h, kernels::PoolWindows w);
  PoolProblem(const Tensor& x, Pair out, const PoolWindow& window, bool count_include_pad);

  kernels::Pool pool() const;
  int64_t images() const { return shape_[0] * shape_[1] / channels_; }
  const kernels::PoolKernel& kernel() const { return *kernel_; }

  Tensor dense(const Tensor& t) const;  ///< t in the dtype and format of x
  Tensor new_input() const;             ///< a tensor like x
  Tensor new_output() const;
  Tensor new_index() const;
  /// "quern_verbose,<op>,...": the kernel and the problem.
  void report(VerboseOp& line) const;

 private:
  Shape shape_, out_shape_;
  DType dtype_;
  MemoryFormat format_;
  int64_t channels_;  // of the kernel's images: those of x for channels_last, else 1
  kernels::PoolWindows h_, w_;
  const kernels::PoolKernel* kernel_;
};

}  // namespace quern::detail
