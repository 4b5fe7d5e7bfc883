#include "quern/ops/channel_norm.h"

#include <cmath>

#include "quern/tensor/raw.h"

namespace quern::detail {
namespace {

constexpr std::string_view kOp = "batch_norm";

DType parameter_dtype(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

/// A new [channels] tensor, from f(channel) in f64.
template <class F>
Tensor by_channel(int64_t channels, DType dtype, F f) {
  Tensor t = empty({channels}, DType::f64);
  for (int64_t c = 0; c < channels; ++c) t.data<double>()[c] = f(c);
  return raw::to(t, dtype);
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

void check_batch_norm(const BatchNorm& norm, const Shape& x, DType dtype, bool training) {
  const auto check_parameter = [&](std::string_view name, const Tensor& t) {
    if (!t.defined()) return;
    check(t.dtype() == parameter_dtype(dtype) && t.shape() == Shape{x[1]}, kOp,
          "{}: expected {} [{}], got {}; x {} {}", name, parameter_dtype(dtype), x[1], t, dtype, x);
  };
  check_parameter("running_mean", norm.running_mean);
  check_parameter("running_var", norm.running_var);
  check_parameter("weight", norm.weight);
  check_parameter("bias", norm.bias);
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

ChannelNorm::ChannelNorm(const BatchNorm& norm, const Moments& moments, DType dtype) {
  const Parameter w(norm.weight, 1), b(norm.bias, 0), m(moments.mean, 0), var(moments.var, 1);
  const auto tensor = [&](auto f) {
    return by_channel(moments.mean.numel(), parameter_dtype(dtype), f);
  };
  const auto r = [&](int64_t c) { return 1 / std::sqrt(var[c] + norm.eps); };
  scale = tensor([&](int64_t c) { return w[c] * r(c); });
  shift = tensor([&](int64_t c) { return b[c] - m[c] * w[c] * r(c); });
  mean = tensor([&](int64_t c) { return m[c]; });
  invstd = tensor(r);
}

EvaluationNorm::EvaluationNorm(const BatchNorm& norm, DType dtype) {
  const Shape shape = norm.running_mean.shape();
  const DType parameters = parameter_dtype(dtype);
  scale = empty(shape, parameters), shift = empty(shape, parameters);
  visit_floating(kOp, parameters, [&]<class T>(std::type_identity<T>) {
    const auto values = [&](const Tensor& t, double otherwise) {
      return t.defined() ? raw::contiguous(t) : full(shape, otherwise, parameters);
    };
    const Tensor weight = values(norm.weight, 1), bias = values(norm.bias, 0);
    const Tensor mean = values(norm.running_mean, 0), var = values(norm.running_var, 1);
    const T *w = weight.data<T>(), *b = bias.data<T>(), *m = mean.data<T>(), *v = var.data<T>();
    T *a = scale.data<T>(), *c = shift.data<T>();
    const T eps = static_cast<T>(norm.eps);
    for (int64_t i = 0; i < shape[0]; ++i) {
      const auto s = w[i] / std::sqrt(v[i] + eps);
      a[i] = static_cast<T>(s);
      c[i] = static_cast<T>(b[i] - m[i] * s);
    }
  });
}

ChannelGradients::ChannelGradients(const ChannelNorm& norm, const Tensor& weight_,
                                   const double* sum_dy, const double* sum_dyx, double count) {
  const Parameter w(weight_, 1), m(norm.mean, 0), r(norm.invstd, 1);
  const auto tensor = [&](auto f) { return by_channel(norm.mean.numel(), norm.mean.dtype(), f); };
  const auto fa = [&](int64_t i) { return w[i] * r[i]; };
  const auto fb = [&](int64_t i) { return -fa(i) * r[i] * r[i] * sum_dyx[i] / count; };
  a = tensor(fa);
  b = tensor(fb);
  c = tensor([&](int64_t i) { return -fa(i) * sum_dy[i] / count - fb(i) * m[i]; });
  weight = tensor([&](int64_t i) { return sum_dyx[i] * r[i]; });
  bias = tensor([&](int64_t i) { return sum_dy[i]; });
}

}  // namespace quern::detail
