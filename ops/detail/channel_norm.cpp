#include "quern/ops/detail/channel_norm.h"

#include <cmath>

#include "quern/tensor/raw.h"

namespace quern::detail {
namespace {

constexpr std::string_view kOp = "batch_norm";

Tensor to_f64(const Tensor& t) { return raw::contiguous(raw::to(t, DType::f64)); }

/// `t`, dense, or [channels] of `otherwise` where there is none.
Tensor values(const Tensor& t, int64_t channels, double otherwise, DType dtype) {
  return t.defined() ? raw::contiguous(raw::to(t, dtype)) : full({channels}, otherwise, dtype);
}

/// running = (1-momentum)·running + momentum·factor·value, in f64
void update(const Tensor& running, const Tensor& value, double momentum, double factor) {
  if (!running.defined()) return;
  const double* now = value.data<double>();
  const int64_t stride = running.stride(0);
  visit_floating(kOp, running.dtype(), [&]<class T>(std::type_identity<T>) {
    T* moved = running.out<T>();
    for (int64_t c = 0; c < running.numel(); ++c, moved += stride)
      *moved = static_cast<T>((1 - momentum) * *moved + momentum * (factor * now[c]));
  });
  running.storage()->bump_version();
}

}  // namespace

void check_batch_norm(const BatchNorm& norm, const Shape& x, DType dtype, bool training) {
  const auto check_parameter = [&](std::string_view name, const Tensor& t) {
    if (!t.defined()) return;
    check((t.dtype() == accumulator(dtype) || t.dtype() == dtype) && t.shape() == Shape{x[1]}, kOp,
          "{}: expected {} [{}], got {}; x {} {}", name, accumulator(dtype), x[1], t, dtype, x);
  };
  check_parameter("running_mean", norm.running_mean);
  check_parameter("running_var", norm.running_var);
  check_parameter("weight", norm.weight);
  check_parameter("bias", norm.bias);
  if (training && norm.running_mean.defined())
    raw::check_writable(kOp, norm.running_mean, "running_mean");
  if (training && norm.running_var.defined())
    raw::check_writable(kOp, norm.running_var, "running_var");
  check(training || (norm.running_mean.defined() && norm.running_var.defined()), kOp,
        "running_mean, running_var: expected both in evaluation, got {}, {}", norm.running_mean,
        norm.running_var);
  check(!training || numel(x) > x[1], kOp,
        "x: expected more than 1 value per channel when training, got {} {}", dtype, x);
  check(norm.eps >= 0 && std::isfinite(norm.momentum), kOp,
        "eps, momentum: expected eps >= 0 and a finite momentum, got {}, {}", norm.eps,
        norm.momentum);
}

Moments::Moments(int64_t channels)
    : mean(empty({channels}, DType::f64)), var(empty({channels}, DType::f64)) {}
Moments::Moments(const BatchNorm& running)
    : mean(to_f64(running.running_mean)), var(to_f64(running.running_var)) {}

void update_running(const BatchNorm& norm, const Moments& moments, double count) {
  update(norm.running_mean, moments.mean, norm.momentum, 1);
  update(norm.running_var, moments.var, norm.momentum, count / (count - 1));
}

ChannelNorm::ChannelNorm(const BatchNorm& norm, const Moments& moments, DType dtype, Center where) {
  const int64_t channels = moments.mean.numel();
  const DType parameters = accumulator(dtype);
  for (Tensor* t : {&center, &excess, &scale, &shift, &invstd}) *t = empty({channels}, parameters);
  visit_floating(kOp, parameters, [&]<class T>(std::type_identity<T>) {
    const Tensor weight = values(norm.weight, channels, 1, parameters);
    const Tensor bias = values(norm.bias, channels, 0, parameters);
    const T *w = weight.data<T>(), *b = bias.data<T>();
    const double *m = moments.mean.data<double>(), *v = moments.var.data<double>();
    T *mu = center.out<T>(), *more = excess.out<T>(), *r = invstd.out<T>();
    T *a = scale.out<T>(), *c = shift.out<T>();
    for (int64_t i = 0; i < channels; ++i) {
      const double inverse = 1 / std::sqrt(v[i] + norm.eps);
      mu[i] = static_cast<T>(where == Center::mean ? m[i] : 0);
      const double over = static_cast<double>(mu[i]) - m[i];
      more[i] = static_cast<T>(over);
      a[i] = static_cast<T>(w[i] * inverse);
      c[i] = static_cast<T>(b[i] + over * w[i] * inverse);
      r[i] = static_cast<T>(inverse);
    }
  });
}

ChannelGradients::ChannelGradients(const ChannelNorm& norm, const Tensor& weight_,
                                   const double* sum_dy, const double* sum_dyx, double count) {
  const int64_t channels = norm.center.numel();
  const DType parameters = norm.center.dtype();
  for (Tensor* t : {&a, &b, &c, &weight, &bias}) *t = empty({channels}, parameters);
  visit_floating(kOp, parameters, [&]<class T>(std::type_identity<T>) {
    const Tensor scales = values(weight_, channels, 1, parameters);
    const T *w = scales.data<T>(), *over = norm.excess.data<T>(), *r = norm.invstd.data<T>();
    T *of_dy = a.out<T>(), *of_x = b.out<T>(), *constant = c.out<T>();
    T *dweight = weight.out<T>(), *dbias = bias.out<T>();
    for (int64_t i = 0; i < channels; ++i) {
      const double invstd = r[i], s = w[i] * invstd;
      const double t = sum_dyx[i] + over[i] * sum_dy[i];
      const double slope = -s * invstd * invstd * t / count;
      of_dy[i] = static_cast<T>(s);
      of_x[i] = static_cast<T>(slope);
      constant[i] = static_cast<T>(-s * sum_dy[i] / count + slope * over[i]);
      dweight[i] = static_cast<T>(t * invstd);
      dbias[i] = static_cast<T>(sum_dy[i]);
    }
  });
}

}  // namespace quern::detail
