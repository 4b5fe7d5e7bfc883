#include "quern/ops/adaptive_avg_pool2d.h"

#include "quern/autograd/node.h"
#include "quern/ops/detail/elementwise.h"
#include "quern/ops/detail/pool_problem.h"
#include "quern/tensor/raw.h"

namespace quern {
namespace {
constexpr std::string_view kOp = "adaptive_avg_pool2d";
}

Tensor adaptive_avg_pool2d(const Tensor& x, Pair output_size) {
  detail::check_pool_input(kOp, x);
  constexpr int64_t kMax = int64_t{1} << 31;  // products with a size of x don't overflow
  check(1 <= output_size.h && output_size.h < kMax && 1 <= output_size.w && output_size.w < kMax,
        kOp, "output_size: expected 1 or more (below 2^31), got {}", output_size);

  // First, so that a size that is too large fails before tables of it are made.
  const Tensor y =
      empty({x.size(0), x.size(1), output_size.h, output_size.w}, x.dtype(), x.format());
  VerboseOp line("adaptive_avg_pool2d_fwd");
  const detail::PoolProblem problem(x, kernels::adaptive_windows(x.size(2), output_size.h),
                                    kernels::adaptive_windows(x.size(3), output_size.w));
  problem.report(line);
  const Tensor dense = problem.dense(x);
  kernels::avg_pool_forward(problem.kernel(), problem.pool(), problem.images(), dense.data_ptr(),
                            y.out_ptr());

  if (output_size == Pair(1)) {  // all pixels have the same gradient
    const auto pixels = static_cast<double>(x.size(2) * x.size(3));
    return record(kOp, y, {x}, [pixels, shape = x.shape()](const Tensor& dy, Needs) -> Tensors {
      return {raw::expand(raw::binary(kOp, kernels::Binary::div, dy, pixels), shape)};
    });
  }
  return record(kOp, y, {x}, [problem](const Tensor& dy, Needs) -> Tensors {
    VerboseOp line("adaptive_avg_pool2d_bwd");
    problem.report(line);
    const Tensor dense = problem.dense(dy), dx = problem.new_input();
    kernels::avg_pool_backward(problem.kernel(), problem.pool(), problem.images(), dense.data_ptr(),
                               dx.out_ptr());
    return {dx};
  });
}

}  // namespace quern
