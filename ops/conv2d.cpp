#include "quern/ops/conv2d.h"

#include "quern/autograd/node.h"
#include "quern/ops/autocast.h"
#include "quern/ops/kernels/conv/conv.h"
#include "quern/ops/pack_cache.h"
#include "quern/tensor/raw.h"

namespace quern {
namespace {

using kernels::ConvPass;
using kernels::ConvPlan;
using kernels::ConvProblem;
constexpr std::string_view kOp = "conv2d";

DType sum_dtype(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

void check_pair(std::string_view name, Pair value, int64_t least) {
  constexpr int64_t most = INT32_MAX;  // keeps sums and products of sizes within int64
  check(value.h >= least && value.w >= least && value.h <= most && value.w <= most, kOp,
        "{}: expected {}..{}, got {}", name, least, most, value);
}

void check_dtypes(const Tensor& x, const Tensor& weight) {
  const auto casts = [](const Tensor& t) {
    return t.dtype() == DType::f32 || t.dtype() == DType::bf16;
  };
  check(weight.dtype() == x.dtype() || (autocast_enabled() && casts(x) && casts(weight)), kOp,
        "weight: expected x's dtype, {}, got {}", x.dtype(), weight.dtype());
}

/// Checks everything but the bias and the dtype of the weight.
ConvProblem make_problem(const Tensor& x, const Tensor& weight, Pair stride, Pair padding,
                         Pair dilation, int64_t groups) {
  check(x.defined() && is_floating(x.dtype()) && x.dim() == 4 && x.numel() > 0, kOp,
        "x: expected a floating, non-empty tensor [N,C,H,W], got {}", describe(x));
  check(weight.defined() && weight.dim() == 4 && weight.numel() > 0, kOp,
        "weight: expected a non-empty tensor [O,C/groups,KH,KW], got {}", describe(weight));
  check_pair("stride", stride, 1);
  check_pair("padding", padding, 0);
  check_pair("dilation", dilation, 1);
  check(groups >= 1 && x.size(1) % groups == 0 && weight.size(0) % groups == 0, kOp,
        "groups: expected a divisor of {} input and {} output channels, got {}", x.size(1),
        weight.size(0), groups);
  check(weight.size(1) == x.size(1) / groups, kOp,
        "weight: expected {} input channels (groups={}), got {}; input {}, weight {}",
        x.size(1) / groups, groups, weight.size(1), x.shape(), weight.shape());
  const auto outputs = [&](int d, int64_t stride, int64_t padding, int64_t dilation) {
    const int64_t padded = x.size(d) + 2 * padding, reach = dilation * (weight.size(d) - 1) + 1;
    check(
        reach <= padded, kOp,
        "weight: expected a kernel (dilated: {}) within the padded input ({}) along {}; input {}, "
        "weight {}",
        reach, padded, d == 2 ? "height" : "width", x.shape(), weight.shape());
    return (padded - reach) / stride + 1;
  };
  return {.n = x.size(0),
          .ic = x.size(1),
          .ih = x.size(2),
          .iw = x.size(3),
          .oc = weight.size(0),
          .oh = outputs(2, stride.h, padding.h, dilation.h),
          .ow = outputs(3, stride.w, padding.w, dilation.w),
          .kh = weight.size(2),
          .kw = weight.size(3),
          .stride_h = stride.h,
          .stride_w = stride.w,
          .pad_h = padding.h,
          .pad_w = padding.w,
          .dilation_h = dilation.h,
          .dilation_w = dilation.w,
          .groups = groups,
          .dtype = x.dtype(),
          .format = x.format()};
}

/// The weight as the plan's kernel reads it; kept between calls as long as it doesn't change.
class PackedWeight {
 public:
  PackedWeight(const ConvPlan& plan, const Tensor& weight) {
    if (plan.packed_bytes() == 0) {
      weight_ = raw::contiguous(weight);
      return;
    }
    packed_ = packed_copy(weight, plan.pass == ConvPass::forward ? "conv2d_fwd" : "conv2d_dgrad",
                          *plan.gemm, plan.packed_bytes(),
                          [&](void* packed) { plan.pack(raw::contiguous(weight).raw(), packed); },
                          {plan.problem.groups, plan.problem.dilation_w});
  }
  const void* data() const { return packed_ ? packed_->data() : weight_.raw(); }

 private:
  std::shared_ptr<const Storage> packed_;
  Tensor weight_;
};

}  // namespace

Tensor conv2d(const Tensor& x_any, const Tensor& weight_any, const Tensor& bias, Pair stride,
              Pair padding, Pair dilation, int64_t groups) {
  ConvProblem problem = make_problem(x_any, weight_any, stride, padding, dilation, groups);
  check_dtypes(x_any, weight_any);
  check(!bias.defined() ||
            (bias.shape() == Shape{problem.oc} &&
             (bias.dtype() == sum_dtype(x_any.dtype()) || bias.dtype() == x_any.dtype())),
        kOp, "bias: expected {} [{}], got {}", sum_dtype(x_any.dtype()), problem.oc,
        describe(bias));

  const Tensor x = autocast::lower(x_any), weight = autocast::lower(weight_any);
  problem.dtype = x.dtype();

  const Tensor source = raw::contiguous(x, problem.format);
  Tensor y = empty({problem.n, problem.oc, problem.oh, problem.ow}, problem.dtype, problem.format);
  {
    const Tensor b =
        bias.defined() ? raw::contiguous(raw::to(bias, sum_dtype(problem.dtype))) : bias;
    const ConvPlan plan = plan_conv(problem, ConvPass::forward);
    const PackedWeight packed(plan, weight);
    conv_forward(plan, source.raw(), packed.data(), y.raw(),
                 {.shift = b.defined() ? b.raw() : nullptr});
  }

  // dx: the same sum from the outputs' side; dweight[o,c,r,s] = Σ dy[n,o,i,j] · x[n,c,...];
  // dbias[o] = Σ dy. Each saves only what the other needs.
  return record("conv2d", y, {x, weight, bias},
                [problem, x = weight.requires_grad() ? SavedTensor(kOp, source) : SavedTensor(),
                 weight = x.requires_grad() ? SavedTensor(kOp, weight) : SavedTensor(),
                 weight_shape = weight.shape()](const Tensor& dy_any, Needs needs) -> Tensors {
                  const Tensor dy = raw::contiguous(dy_any, problem.format);
                  Tensors gradients(3);
                  if (needs[0]) {
                    gradients[0] = empty({problem.n, problem.ic, problem.ih, problem.iw},
                                         problem.dtype, problem.format);
                    const ConvPlan plan = plan_conv(problem, ConvPass::dgrad);
                    const PackedWeight packed(plan, weight.get());
                    conv_dgrad(plan, dy.raw(), packed.data(), gradients[0].raw());
                  }
                  if (needs[1]) {
                    gradients[1] = empty(weight_shape, sum_dtype(problem.dtype));
                    conv_wgrad(plan_conv(problem, ConvPass::wgrad), x.get().raw(), dy.raw(),
                               gradients[1].raw());
                  }
                  if (needs[2]) {
                    gradients[2] = empty({problem.oc}, sum_dtype(problem.dtype));
                    conv_bias_grad(problem, dy.raw(), gradients[2].raw());
                  }
                  return gradients;
                });
}

}  // namespace quern
