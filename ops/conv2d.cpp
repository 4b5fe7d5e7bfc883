#include "quern/ops/conv2d.h"

#include "quern/autograd/node.h"
#include "quern/ops/autocast.h"
#include "quern/ops/detail/conv_problem.h"
#include "quern/ops/detail/matrix.h"
#include "quern/tensor/raw.h"

namespace quern {
namespace {

using kernels::ConvPass;
using kernels::ConvProblem;
constexpr std::string_view kOp = "conv2d";

}  // namespace

Tensor conv2d(const Tensor& x_any, const Tensor& weight_any, const Tensor& bias, Pair stride,
              Pair padding, Pair dilation, int64_t groups) {
  ConvProblem problem = detail::conv_problem(x_any, weight_any, stride, padding, dilation, groups);
  const Tensor x = autocast::lower(x_any), weight = autocast::lower(weight_any);
  problem.dtype = x.dtype();
  check(!bias.defined() || (bias.shape() == Shape{problem.oc} &&
                            (bias.dtype() == accumulator(x.dtype()) || bias.dtype() == x.dtype())),
        kOp, "bias: expected {} [{}], got {}", accumulator(x.dtype()), problem.oc, bias);

  const Tensor source = raw::contiguous(x, problem.format);
  Tensor y = empty(detail::output_shape(problem), problem.dtype, problem.format);
  const Tensor b =
      bias.defined() ? raw::contiguous(raw::to(bias, accumulator(problem.dtype))) : bias;
  detail::convolve(problem, ConvPass::forward, source, weight, y,
                   kernels::activate(b.defined() ? b.data_ptr() : nullptr));

  // dx: the same sum from the outputs' side; dweight[o,c,r,s] = Σ dy[n,o,i,j] · x[n,c,...];
  // dbias[o] = Σ dy. Each saves only what the other needs.
  return record(
      "conv2d", y, {x, weight, bias},
      [problem, x = weight.requires_grad() ? SavedTensor(kOp, source) : SavedTensor(),
       weight = x.requires_grad() ? SavedTensor(kOp, weight) : SavedTensor(),
       weight_shape = weight.shape()](const Tensor& dy_any, Needs needs) -> Tensors {
        const Tensor dy = raw::contiguous(dy_any, problem.format);
        Tensors gradients(3);
        if (needs[0])
          gradients[0] = empty(detail::input_shape(problem), problem.dtype, problem.format);
        if (needs[0] && needs[1] && detail::differentiates_at_once(problem)) {
          gradients[1] = detail::convolve_back(problem, dy, weight.get(), gradients[0],
                                               {.x = x.get().data_ptr()});
        } else {
          if (needs[0]) detail::convolve(problem, ConvPass::dgrad, dy, weight.get(), gradients[0]);
          if (needs[1])
            gradients[1] = detail::conv_weight_gradient(problem, weight_shape, x.get(), dy);
        }
        if (needs[2]) {
          gradients[2] = empty({problem.oc}, accumulator(problem.dtype));
          conv_bias_grad(problem, dy.data_ptr(), gradients[2].out_ptr());
        }
        return gradients;
      });
}

}  // namespace quern
