#include "quern/ops/linear.h"

#include "quern/autograd/node.h"
#include "quern/ops/autocast.h"
#include "quern/ops/detail/matrix.h"
#include "quern/ops/detail/packed_copy.h"
#include "quern/ops/kernels/reduce/row.h"
#include "quern/tensor/check_dense.h"
#include "quern/tensor/raw.h"

namespace quern {
namespace {

using namespace detail;
constexpr std::string_view kOp = "linear";
using kernels::GemmOperand, kernels::GemmProblem;

/// [..., n] as [rows, n].
Tensor as_rows(const Tensor& t) {
  int64_t rows = 1;
  for (int d = 0; d + 1 < t.dim(); ++d) rows *= t.size(d);
  return raw::reshape(t, {rows, t.size(-1)});
}

/// c[rows, n] = a[rows, k]·b + bias, with b, all of `weight`, from the cache of packed weights.
void multiply_by_weight(std::string_view name, const Tensor& a, const Tensor& weight,
                        const GemmOperand& b, const Tensor& bias, const Tensor& c) {
  VerboseOp line(name);
  const auto [kernel, bf16_terms, speed] = select_multiplier(a.dtype());
  const int64_t k = a.size(1), n = c.size(1);
  const auto panels =
      packed_copy(weight, name, kernel, kernels::packed_b_bytes(kernel, k, n, bf16_terms),
                  [&, &kernel = kernel, bf16_terms = bf16_terms](void* to) {
                    kernels::pack_gemm_b(kernel, b, k, n, to, bf16_terms);
                  },
                  {bf16_terms});
  const GemmProblem problem{.m = a.size(0),
                            .n = n,
                            .k = k,
                            .a = operand(a),
                            .b = b,
                            .packed_b = panels->data(),
                            .c = c.out_ptr(),
                            .c_dtype = c.dtype(),
                            .c_row_stride = n,
                            .bias = bias.defined() ? bias.data_ptr() : nullptr,
                            .bf16_terms = bf16_terms};
  report(line, kernel, problem);
  kernels::gemm(kernel, problem);
}

/// dyᵀ·x
Tensor weight_gradient(const Tensor& dy, const Tensor& x) {
  VerboseOp line("linear_bwd_weights");
  const auto [kernel, bf16_terms, speed] = select_multiplier(x.dtype());
  const Tensor dweight = empty({dy.size(1), x.size(1)}, kernel.c);
  const GemmProblem problem{.m = dy.size(1),
                            .n = x.size(1),
                            .k = x.size(0),
                            .a = transposed(operand(dy)),
                            .b = operand(x),
                            .c = dweight.out_ptr(),
                            .c_dtype = kernel.c,
                            .c_row_stride = x.size(1),
                            .bf16_terms = bf16_terms};
  select_product(line, kernel, x.dtype(), problem)(problem);
  return dweight;
}

/// Σ dy over rows, each cell some of the columns.
Tensor bias_gradient(const Tensor& dy_any) {
  constexpr int64_t kColumns = 256;
  const Tensor dy = raw::contiguous(dy_any);
  const int64_t rows = dy.size(0), columns = dy.size(1);
  const Tensor dbias = zeros({columns}, accumulator(dy.dtype()));
  if (rows == 0) return dbias;
  const auto& kernel = kernels::select_row(kOp, kernels::RowOp::sum_rows, dy.dtype());
  parallel_chunks(columns, kColumns, [&](int64_t begin, int64_t end) {
    kernel.run({.n = end - begin,
                .x = dy.data_ptr(begin),
                .out = dbias.out_ptr(begin),
                .rows = rows,
                .stride = columns});
  });
  return dbias;
}

}  // namespace

Tensor linear(const Tensor& x_any, const Tensor& weight_any, const Tensor& bias) {
  check(x_any.defined() && is_floating(x_any.dtype()) && x_any.dim() >= 1, kOp,
        "x: expected a floating tensor [..., in], got {}", x_any);
  check_computes(kOp, x_any.dtype());
  check(weight_any.defined() && weight_any.dim() == 2, kOp, "weight: expected [out, in], got {}",
        weight_any);
  detail::check_dense(kOp, "x", x_any), detail::check_dense(kOp, "weight", weight_any);
  const Tensor x = autocast::lower(x_any), weight = autocast::lower(weight_any);
  check(weight.dtype() == x.dtype() && weight.size(1) == x.size(-1), kOp,
        "weight: expected {} [out, {}], got {}; x {}", x.dtype(), x.size(-1), weight, x);
  const DType sums = accumulator(x.dtype());
  check(!bias.defined() || ((bias.dtype() == x.dtype() || bias.dtype() == sums) &&
                            bias.shape() == Shape{weight.size(0)}),
        kOp, "bias: expected {} [{}], got {}; weight {}", sums, weight.size(0), bias, weight);

  Shape shape = x.shape();
  shape[x.dim() - 1] = weight.size(0);
  const Tensor y = empty(shape, x.dtype());
  multiply_by_weight("linear_fwd", as_rows(x), weight, transposed(operand(weight)),
                     bias.defined() ? raw::contiguous(raw::to(bias, sums)) : Tensor(), as_rows(y));

  return record(kOp, y, {x, weight, bias},
                [x = SavedTensor(kOp, x), weight = SavedTensor(kOp, weight)](
                    const Tensor& dy_any, Needs needs) -> Tensors {
                  const Tensor dy = as_rows(dy_any);
                  Tensors gradients(3);
                  if (needs[0]) {
                    gradients[0] = empty(x.get().shape(), dy.dtype());
                    multiply_by_weight("linear_bwd_data", dy, weight.get(), operand(weight.get()),
                                       Tensor(), as_rows(gradients[0]));
                  }
                  if (needs[1]) gradients[1] = weight_gradient(dy, as_rows(x.get()));
                  if (needs[2]) gradients[2] = bias_gradient(dy);
                  return gradients;
                });
}

}  // namespace quern
