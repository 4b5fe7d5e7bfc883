#include "quern/ops/batch_norm.h"

#include "quern/autograd/node.h"
#include "quern/ops/detail/channel_norm.h"
#include "quern/ops/detail/report.h"
#include "quern/ops/kernels/norm/batch_norm.h"
#include "quern/tensor/raw.h"

namespace quern {
namespace {

using namespace kernels;
using namespace detail;
constexpr std::string_view kOp = "batch_norm";

/// x in one of the two layouts, and the kernel for it. A plane of one pixel makes nchw nhwc.
struct Problem {
  explicit Problem(const Tensor& x) : x(raw::contiguous(x, x.format())) {
    size = {x.size(0), x.numel() / (x.size(0) * x.size(1)), x.size(1)};
    kernel = &select_batch_norm_kernel(
        x.dtype(), x.format() == MemoryFormat::channels_last || size.pixels == 1);
  }
  double count() const { return static_cast<double>(size.images * size.pixels); }

  Tensor x;
  BatchNormSize size;
  const BatchNormKernel* kernel;
};

Moments batch_moments(const Problem& p) {
  Moments m(p.size.channels);
  double* var = m.var.out<double>();
  batch_norm_stats(*p.kernel, p.size, p.x.data_ptr(), m.mean.out<double>(), var);
  for (int64_t c = 0; c < p.size.channels; ++c) var[c] /= p.count();
  return m;
}

/// dx = dy·scale
void scale(const Problem& p, const Tensor& dy, const Tensor& scale, const Tensor& dx) {
  const Tensor zero = zeros_like(scale);
  batch_norm_normalise(*p.kernel, p.size, dy.data_ptr(), zero.data_ptr(), scale.data_ptr(),
                       zero.data_ptr(), dx.out_ptr());
}

Tensor normalise(const Problem& p, const Tensor& x, const BatchNorm& norm, const Moments& moments,
                 bool training) {
  const ChannelNorm channels(norm, moments, x.dtype());
  Tensor y = empty_like(p.x);
  batch_norm_normalise(*p.kernel, p.size, p.x.data_ptr(), channels.center.data_ptr(),
                       channels.scale.data_ptr(), channels.shift.data_ptr(), y.out_ptr());

  // Training: dx = a·dy + b·(x - center) + c. In evaluation mean and invstd are constants, and dx
  // is scale·dy.
  return record("batch_norm", y, {x, norm.weight, norm.bias},
                [x = SavedTensor(kOp, p.x), weight = SavedTensor(kOp, norm.weight), channels,
                 training](const Tensor& dy_any, Needs needs) -> Tensors {
                  VerboseOp line("batch_norm_bwd");
                  const Problem p(x.get());
                  report(line, p.kernel->name, p.x, 3 * p.x.nbytes());
                  const Tensor dy = raw::contiguous(raw::to(dy_any, p.x.dtype()), p.x.format());
                  const Tensor dx = needs[0] ? empty_like(p.x) : Tensor();
                  if (!training && !needs[1] && !needs[2]) {
                    scale(p, dy, channels.scale, dx);
                    return {dx, {}, {}};
                  }
                  const Tensor sums = empty({2, p.size.channels}, DType::f64);
                  double *sum_dy = sums.out<double>(), *sum_dyx = sum_dy + p.size.channels;
                  batch_norm_backward_reduce(*p.kernel, p.size, p.x.data_ptr(), dy.data_ptr(),
                                             channels.center.data_ptr(), sum_dy, sum_dyx);
                  const ChannelGradients g(channels, weight.get(), sum_dy, sum_dyx, p.count());
                  if (needs[0] && training) {
                    batch_norm_backward_apply(*p.kernel, p.size, p.x.data_ptr(), dy.data_ptr(),
                                              channels.center.data_ptr(), g.a.data_ptr(),
                                              g.b.data_ptr(), g.c.data_ptr(), dx.out_ptr());
                  } else if (needs[0]) {
                    scale(p, dy, channels.scale, dx);
                  }
                  return {dx, g.weight, g.bias};
                });
}

}  // namespace

Tensor batch_norm(const Tensor& x, const Tensor& running_mean, const Tensor& running_var,
                  const Tensor& weight, const Tensor& bias, bool training, double momentum,
                  double eps) {
  check(x.defined() && is_floating(x.dtype()) && x.dim() >= 2 && x.numel() > 0, kOp,
        "x: expected a floating, non-empty tensor [N,C,...], got {}", x);
  const BatchNorm norm{running_mean, running_var, weight, bias, momentum, eps};
  check_batch_norm(norm, x.shape(), x.dtype(), training);

  VerboseOp line("batch_norm_fwd");
  const Problem p(x);
  report(line, p.kernel->name, p.x, 2 * p.x.nbytes());
  const Moments moments = training ? batch_moments(p) : Moments(norm);
  const Tensor y = normalise(p, x, norm, moments, training);
  if (training) update_running(norm, moments, p.count());
  return y;
}

}  // namespace quern
