#include "quern/ops/max_pool2d.h"

#include "quern/autograd/node.h"
#include "quern/ops/detail/pool_problem.h"

namespace quern {

Tensor max_pool2d(const Tensor& x, Pair kernel, std::optional<Pair> stride, Pair padding,
                  Pair dilation, bool ceil_mode) {
  constexpr std::string_view kOp = "max_pool2d";
  detail::check_pool_input(kOp, x);
  const detail::PoolWindow window{kernel, stride.value_or(kernel), padding, dilation};
  const Pair out = detail::pooled_size(kOp, x, window, ceil_mode);
  check(kernel.h <= INT32_MAX / kernel.w, kOp, "kernel: expected less than 2^31 taps, got {}",
        kernel);

  VerboseOp line("max_pool2d_fwd");
  const detail::PoolProblem problem(x, out, window, false);
  problem.report(line);
  const Tensor dense = problem.dense(x), y = problem.new_output();
  const Tensor index = grad_enabled() && x.requires_grad() ? problem.new_index() : Tensor();
  kernels::max_pool_forward(problem.kernel(), problem.pool(), problem.images(), dense.data_ptr(),
                            y.out_ptr(), index.defined() ? index.out_ptr() : nullptr);

  return record(kOp, y, {x}, [problem, index](const Tensor& dy, Needs) -> Tensors {
    VerboseOp line("max_pool2d_bwd");
    problem.report(line);
    const Tensor dense = problem.dense(dy), dx = problem.new_input();
    kernels::max_pool_backward(problem.kernel(), problem.pool(), problem.images(), dense.data_ptr(),
                               index.data_ptr(), dx.out_ptr());
    return {dx};
  });
}

}  // namespace quern
