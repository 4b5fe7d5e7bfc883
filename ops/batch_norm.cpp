#include "quern/ops/batch_norm.h"

#include <cmath>

#include "quern/autograd/node.h"
#include "quern/ops/kernels/norm/batch_norm.h"
#include "quern/ops/kernels/norm/batch_norm_registry.h"
#include "quern/tensor/raw.h"
#include "quern/tensor/verbose.h"

namespace quern {
namespace {

using namespace kernels;
constexpr std::string_view kOp = "batch_norm";

/// x in one of the two layouts, and the kernel for it. A plane of one pixel makes nchw nhwc.
struct Problem {
  explicit Problem(const Tensor& x) : x(raw::contiguous(x, x.format())) {
    size = {x.size(0), x.numel() / (x.size(0) * x.size(1)), x.size(1)};
    kernel = &select_batch_norm_kernel(
        x.dtype(), x.format() == MemoryFormat::channels_last || size.pixels == 1);
  }
  double count() const { return static_cast<double>(size.images * size.pixels); }
  void report(VerboseOp& line) const {
    if (line)
      line.set(kernel->name, to_string(x.shape()), fmt::format("{}:{}", x.dtype(), x.format()));
  }

  Tensor x;
  BatchNormSize size;
  const BatchNormKernel* kernel;
};

DType parameter_dtype(const Tensor& x) { return x.dtype() == DType::f64 ? DType::f64 : DType::f32; }

void check_parameter(std::string_view name, const Tensor& t, const Tensor& x) {
  if (!t.defined()) return;
  check(t.dtype() == parameter_dtype(x) && t.shape() == Shape{x.size(1)}, kOp,
        "{}: expected {} [{}], got {}; x {}", name, parameter_dtype(x), x.size(1), describe(t),
        describe(x));
}

/// A new [channels] tensor of x's parameters, from f(channel) in f64.
template <class F>
Tensor by_channel(const Tensor& x, F f) {
  Tensor t = empty({x.size(1)}, DType::f64);
  for (int64_t c = 0; c < t.numel(); ++c) t.data<double>()[c] = f(c);
  return raw::to(t, parameter_dtype(x));
}
Tensor to_f64(const Tensor& t) { return raw::contiguous(raw::to(t, DType::f64)); }

/// Its value for channel c in f64, or `otherwise` where there is none.
class Parameter {
 public:
  Parameter(const Tensor& t, double otherwise)
      : t_(t.defined() ? to_f64(t) : Tensor()), otherwise_(otherwise) {}
  double operator[](int64_t c) const { return t_.defined() ? t_.data<double>()[c] : otherwise_; }

 private:
  Tensor t_;
  double otherwise_;
};

/// Mean and biased variance of each channel, f64.
struct Moments {
  Tensor mean, var;
};

Moments batch_moments(const Problem& p) {
  Moments m{empty({p.size.channels}, DType::f64), empty({p.size.channels}, DType::f64)};
  double* var = m.var.data<double>();
  batch_norm_stats(*p.kernel, p.size, p.x.raw(), m.mean.data<double>(), var);
  for (int64_t c = 0; c < p.size.channels; ++c) var[c] /= p.count();
  return m;
}

/// running = (1-momentum)·running + momentum·factor·value
void update(const Tensor& running, const Tensor& value, double momentum, double factor) {
  if (!running.defined()) return;
  Tensor next = to_f64(running);
  for (int64_t c = 0; c < next.numel(); ++c) {
    const double before = next.data<double>()[c], now = factor * value.data<double>()[c];
    next.data<double>()[c] = (1 - momentum) * before + momentum * now;
  }
  raw::copy_(running, next);
}

}  // namespace

Tensor batch_norm(const Tensor& x, const Tensor& running_mean, const Tensor& running_var,
                  const Tensor& weight, const Tensor& bias, bool training, double momentum,
                  double eps) {
  check(x.defined() && is_floating(x.dtype()) && x.dim() >= 2 && x.numel() > 0, kOp,
        "x: expected a floating, non-empty tensor [N,C,...], got {}", describe(x));
  check_parameter("running_mean", running_mean, x);
  check_parameter("running_var", running_var, x);
  check_parameter("weight", weight, x);
  check_parameter("bias", bias, x);
  check(training || (running_mean.defined() && running_var.defined()), kOp,
        "running_mean, running_var: expected both in evaluation, got {}, {}",
        describe(running_mean), describe(running_var));
  check(!training || x.numel() > x.size(1), kOp,
        "x: expected more than 1 value per channel when training, got {}", describe(x));
  check(eps >= 0 && std::isfinite(momentum), kOp,
        "eps, momentum: expected eps >= 0 and a finite momentum, got {}, {}", eps, momentum);

  VerboseOp line("batch_norm_fwd");
  const Problem p(x);
  p.report(line);
  const Moments moments =
      training ? batch_moments(p) : Moments{to_f64(running_mean), to_f64(running_var)};
  if (training) {
    update(running_mean, moments.mean, momentum, 1);
    update(running_var, moments.var, momentum, p.count() / (p.count() - 1));
  }
  const double *mean = moments.mean.data<double>(), *var = moments.var.data<double>();
  const Parameter w(weight, 1), b(bias, 0);
  const auto invstd = [&](int64_t c) { return 1 / std::sqrt(var[c] + eps); };
  const Tensor scale = by_channel(x, [&](int64_t c) { return w[c] * invstd(c); });
  const Tensor shift = by_channel(x, [&](int64_t c) { return b[c] - mean[c] * w[c] * invstd(c); });
  Tensor y = empty_like(p.x);
  batch_norm_normalise(*p.kernel, p.size, p.x.raw(), scale.raw(), shift.raw(), y.raw());

  // Training, of the sums S = Σdy and T = Σdy·(x - mean) over n values, with s = weight·invstd:
  //   dx = s·(dy - S/n - (x - mean)·invstd²·T/n) = a·dy + b·x + c
  //   dweight = T·invstd
  //   dbias = S
  // In evaluation mean and invstd are constants, and dx = s·dy.
  return record(
      "batch_norm", y, {x, weight, bias},
      [x = SavedTensor(kOp, p.x),
       weight = weight.defined() ? SavedTensor(kOp, weight) : SavedTensor(),
       mean = by_channel(x, [&](int64_t c) { return mean[c]; }), invstd = by_channel(x, invstd),
       training](const Tensor& dy_any, Needs needs) -> Tensors {
        VerboseOp line("batch_norm_bwd");
        const Problem p(x.get());
        p.report(line);
        const Tensor dy = raw::contiguous(raw::to(dy_any, p.x.dtype()), p.x.format());
        const Parameter w(weight.defined() ? weight.get() : Tensor(), 1), m(mean, 0), r(invstd, 0);
        const Tensor sums = empty({2, p.size.channels}, DType::f64);
        const double *sum_dy = sums.data<double>(), *sum_dyx = sum_dy + p.size.channels;
        if (training || needs[1] || needs[2])
          batch_norm_backward_reduce(*p.kernel, p.size, p.x.raw(), dy.raw(), mean.raw(),
                                     sums.data<double>(), sums.data<double>() + p.size.channels);
        Tensors gradients(3);
        if (needs[1]) gradients[1] = by_channel(p.x, [&](int64_t c) { return sum_dyx[c] * r[c]; });
        if (needs[2]) gradients[2] = by_channel(p.x, [&](int64_t c) { return sum_dy[c]; });
        if (!needs[0]) return gradients;

        const auto fa = [&](int64_t c) { return w[c] * r[c]; };
        const auto fb = [&](int64_t c) { return -fa(c) * r[c] * r[c] * sum_dyx[c] / p.count(); };
        const auto fc = [&](int64_t c) { return -fa(c) * sum_dy[c] / p.count() - fb(c) * m[c]; };
        const Tensor a = by_channel(p.x, fa);
        gradients[0] = empty_like(p.x);
        if (training) {
          const Tensor b = by_channel(p.x, fb), c = by_channel(p.x, fc);
          batch_norm_backward_apply(*p.kernel, p.size, p.x.raw(), dy.raw(), a.raw(), b.raw(),
                                    c.raw(), gradients[0].raw());
        } else {
          const Tensor zero = zeros_like(a);
          batch_norm_normalise(*p.kernel, p.size, dy.raw(), a.raw(), zero.raw(),
                               gradients[0].raw());
        }
        return gradients;
      });
}

}  // namespace quern
