#include "quern/autograd/gradcheck.h"

#include <cmath>

#include "quern/autograd/grad_mode.h"
#include "quern/tensor/random.h"
#include "quern/tensor/raw.h"

namespace quern {
namespace {

/// Where element `index` of t, counted in logical order, lies.
double& element(const Tensor& t, int64_t index) {
  double* at = t.out<double>();
  for (int d = t.dim() - 1; d >= 0; --d) {
    at += index % t.size(d) * t.stride(d);
    index /= t.size(d);
  }
  return *at;
}

/// The same values, each followed by a NaN: finds a backward that takes its dy to be dense.
Tensor spread(const Tensor& t) {
  Strides strides = contiguous_strides(t.shape());
  for (int64_t& stride : strides) stride *= 2;
  const Tensor gaps = full({2 * t.numel()}, std::nan(""), t.dtype());
  Tensor spread = raw::as_strided(gaps, t.shape(), strides, 0);
  raw::copy_(spread, t);
  return spread;
}

/// Gradients of Σ dy·f for each input, undefined where there is none. What was in grad() stays
/// there.
Tensors analytic(const std::function<Tensor(const Tensors&)>& f, Tensors inputs, const Tensor& dy) {
  Tensors before, grads;
  for (Tensor& x : inputs) {
    before.push_back(x.grad());
    x.set_grad({});
  }
  const GradMode recording(true);
  f(inputs).backward(dy);
  for (const Tensor& x : inputs)
    grads.push_back(x.grad().defined() ? x.grad().to_dense() : x.grad());
  for (size_t i = inputs.size(); i-- > 0;)  // backwards: an input may stand there twice
    inputs[i].set_grad(before[i]);
  return grads;
}

/// d(Σ dy·f)/d(element `index` of x). Outputs are subtracted before they are summed: less cancels.
double numeric(const std::function<Tensor(const Tensors&)>& f, const Tensors& inputs,
               const Tensor& x, int64_t index, const std::vector<double>& dy, double eps) {
  double& value = element(x, index);
  const double kept = value;
  const auto at = [&](double moved) {
    value = moved;
    x.storage()->bump_version();
    return f(inputs).to_vector<double>();
  };
  const double high = kept + eps, low = kept - eps;
  const std::vector<double> above = at(high), below = at(low);
  value = kept;
  x.storage()->bump_version();
  double sum = 0;
  for (size_t i = 0; i < dy.size(); ++i) sum += dy[i] * (above[i] - below[i]);
  return sum / (high - low);
}

}  // namespace

std::string gradcheck(const std::function<Tensor(const Tensors&)>& f, const Tensors& inputs,
                      const GradcheckOptions& options) {
  check(static_cast<bool>(f), "gradcheck", "f: expected a function, got an empty one");
  for (const Tensor& x : inputs)
    check(!x.requires_grad() || (x.is_leaf() && x.dtype() == DType::f64), "gradcheck",
          "inputs: expected f64 leaves, got {}", x);
  const NoGradGuard no_grad;
  const Tensor y = f(inputs);
  check(y.dtype() == DType::f64, "gradcheck", "f: expected an f64 result, got {}", y);
  Generator generator(1);
  const Tensor dy = empty(y.shape(), DType::f64);
  uniform_(dy, -1, 1, generator);
  const std::vector<double> weights = dy.to_vector<double>();
  const Tensors dense = analytic(f, inputs, dy), strided = analytic(f, inputs, spread(dy));

  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].requires_grad()) continue;
    for (int64_t e = 0; e < inputs[i].numel(); ++e) {
      const double expected = numeric(f, inputs, inputs[i], e, weights, options.eps);
      for (const Tensors* grads : {&dense, &strided}) {
        const Tensor& grad = (*grads)[i];
        const double got = grad.defined() ? element(grad, e) : 0;
        if (std::abs(got - expected) <= options.atol + options.rtol * std::abs(expected)) continue;
        return fmt::format("input {} ({}), element {}: backward gives {}{}, differences {}", i,
                           inputs[i].describe(), e, got,
                           grads == &strided ? " for a strided dy" : "", expected);
      }
    }
  }
  return "";
}

}  // namespace quern
