#include "quern/ops/avg_pool2d.h"

#include "quern/autograd/node.h"
#include "quern/ops/detail/pool_problem.h"

namespace quern {

Tensor avg_pool2d(const Tensor& x, Pair kernel, std::optional<Pair> stride, Pair padding,
                  bool ceil_mode, bool count_include_pad) {
  constexpr std::string_view kOp = "avg_pool2d";
  detail::check_pool_input(kOp, x);
  const detail::PoolWindow window{kernel, stride.value_or(kernel), padding, 1};
  const Pair out = detail::pooled_size(kOp, x, window, ceil_mode);

  VerboseOp line("avg_pool2d_fwd");
  const detail::PoolProblem problem(x, out, window, count_include_pad);
  problem.report(line);
  const Tensor dense = problem.dense(x), y = problem.new_output();
  kernels::avg_pool_forward(problem.kernel(), problem.pool(), problem.images(), dense.data_ptr(),
                            y.out_ptr());

  return record(kOp, y, {x}, [problem](const Tensor& dy, Needs) -> Tensors {
    VerboseOp line("avg_pool2d_bwd");
    problem.report(line);
    const Tensor dense = problem.dense(dy), dx = problem.new_input();
    kernels::avg_pool_backward(problem.kernel(), problem.pool(), problem.images(), dense.data_ptr(),
                               dx.out_ptr());
    return {dx};
  });
}

}  // namespace quern
