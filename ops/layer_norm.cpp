#include "quern/ops/layer_norm.h"

#include "quern/autograd/node.h"
#include "quern/ops/kernels/norm/layer_norm.h"
#include "quern/tensor/check_dense.h"
#include "quern/tensor/raw.h"
#include "quern/tensor/verbose.h"

namespace quern {
namespace {

constexpr std::string_view kOp = "layer_norm";

void check_parameter(std::string_view name, const Tensor& t, const Tensor& x, const Shape& shape) {
  const bool fits = !t.defined() || t.dtype() == accumulator(x.dtype()) || t.dtype() == x.dtype();
  check(fits && (!t.defined() || t.shape() == shape), kOp, "{}: expected {} {}, got {}; x {}", name,
        accumulator(x.dtype()), shape, t, x);
}

bool ends_in(const Shape& shape, const Shape& tail) {
  return !tail.empty() && tail.size() <= shape.size() &&
         std::equal(tail.begin(), tail.end(), shape.end() - tail.size());
}

/// `tensors`: like x, read or written
void report(VerboseOp& line, const kernels::LayerNormKernel& kernel, const Tensor& x,
            int64_t tensors) {
  if (!line) return;
  line.set(kernel.name, to_string(x.shape()), fmt::format("{}", x.dtype()));
  line.set_work(0, tensors * x.nbytes());
}

}  // namespace

Tensor layer_norm(const Tensor& x, const Shape& normalized_shape, const Tensor& weight,
                  const Tensor& bias, double eps) {
  check(x.defined() && is_floating(x.dtype()) && x.numel() > 0, kOp,
        "x: expected a floating, non-empty tensor, got {}", x);
  detail::check_dense(kOp, "x", x);
  check(ends_in(x.shape(), normalized_shape), kOp,
        "normalized_shape: expected the last sizes of x, at least one, got {}; x {}",
        normalized_shape, x);
  check_parameter("weight", weight, x, normalized_shape);
  check_parameter("bias", bias, x, normalized_shape);
  check(eps >= 0, kOp, "eps: expected 0 or more, got {}", eps);

  VerboseOp line("layer_norm_fwd");
  const auto& kernel = kernels::select_layer_norm_kernel(x.dtype());
  report(line, kernel, x, 2);
  const int64_t columns = numel(normalized_shape);
  const kernels::LayerNormRows size{x.numel() / columns, columns};
  const DType parameter = accumulator(x.dtype());
  const Tensor dense = raw::contiguous(x);
  const auto values = [&](const Tensor& t, double otherwise) {
    return t.defined() ? raw::contiguous(raw::to(t, parameter))
                       : full(normalized_shape, otherwise, parameter);
  };
  const Tensor w = values(weight, 1), b = values(bias, 0);
  const Tensor mean = empty({size.rows}, DType::f64), invstd = empty({size.rows}, parameter);
  const Tensor y = empty(x.shape(), x.dtype());
  kernels::layer_norm_forward(kernel, size, dense.data_ptr(), w.data_ptr(), b.data_ptr(), eps,
                              y.out_ptr(), mean.out<double>(), invstd.out_ptr());

  return record(
      kOp, y, {x, weight, bias},
      [&kernel, size, parameter, normalized_shape, mean, invstd, x = SavedTensor(kOp, dense),
       w = SavedTensor(kOp, w)](const Tensor& dy, Needs needs) -> Tensors {
        VerboseOp line("layer_norm_bwd");
        report(line, kernel, x.get(), 3);
        const Tensor dense = raw::contiguous(raw::to(dy, x.get().dtype())),
                     dx = empty_like(x.get());
        const Tensor dw = empty(normalized_shape, DType::f64),
                     db = empty(normalized_shape, DType::f64);
        kernels::layer_norm_backward(kernel, size, x.get().data_ptr(), dense.data_ptr(),
                                     w.get().data_ptr(), mean.data<double>(), invstd.data_ptr(),
                                     dx.out_ptr(), dw.out<double>(), db.out<double>());
        return {needs[0] ? dx : Tensor(), needs[1] ? raw::to(dw, parameter) : Tensor(),
                needs[2] ? raw::to(db, parameter) : Tensor()};
      });
}

}  // namespace quern
