#include "quern/ops/matmul.h"

#include <span>

#include "quern/autograd/node.h"
#include "quern/ops/autocast.h"
#include "quern/ops/detail/matrix.h"
#include "quern/tensor/check_dense.h"
#include "quern/tensor/raw.h"

namespace quern {
namespace {

using namespace detail;
constexpr std::string_view kOp = "matmul";
using kernels::GemmProblem;

Shape batch_of(const Tensor& t) {
  return Shape(std::span(t.shape().begin(), static_cast<size_t>(t.dim() - 2)));
}
Shape with_matrix(Shape batch, int64_t rows, int64_t columns) {
  batch.push_back(rows);
  batch.push_back(columns);
  return batch;
}

/// One dimension of a batch: how far a step moves in a, b and c.
struct Loop {
  int64_t size, a, b, c;
};

/// Makes the steps of a loop more rows of the product, more terms of its sums, or its batch.
bool absorb(const Loop& l, GemmProblem& p) {
  if (p.batch != 1) return false;
  if (l.b == 0 && l.a == p.m * p.a.row_stride && l.c == p.m * p.c_row_stride) {
    p.m *= l.size;
  } else if (l.c == 0 && l.a == p.k * p.a.col_stride && l.b == p.k * p.b.row_stride) {
    p.k *= l.size;
  } else if (l.c != 0) {
    p.batch = l.size;
    p.a.batch_stride = l.a, p.b.batch_stride = l.b, p.c_batch_stride = l.c;
  } else {
    return false;
  }
  return true;
}

/// Runs `p`, of operands of `dtype`, by compute(p) at each step of `loops`, outermost first. Steps
/// that don't move in c add to it.
template <class Compute>
void run(Compute compute, DType dtype, GemmProblem p, std::span<const Loop> loops) {
  if (loops.empty()) return compute(p);
  const Loop& l = loops.front();
  const auto move = [](const void* data, int64_t elements, DType dtype) {
    return static_cast<const std::byte*>(data) + elements * itemsize(dtype);
  };
  for (int64_t i = 0; i < l.size; ++i) {
    run(compute, dtype, p, loops.subspan(1));
    p.a.data = move(p.a.data, l.a, dtype);
    p.b.data = move(p.b.data, l.b, dtype);
    p.c = static_cast<std::byte*>(p.c) + l.c * itemsize(p.c_dtype);
    p.accumulate = p.accumulate || l.c == 0;
  }
}

/// c[..., m, n] = a[..., m, k]·b[..., k, n] over `batch`, to which all three broadcast; c, dense,
/// sums what falls on the same element.
void multiply(std::string_view name, const Shape& batch, const Tensor& a, const Tensor& b,
              const Tensor& c) {
  VerboseOp line(name);
  const auto [kernel, bf16_terms, speed] = select_multiplier(a.dtype());
  GemmProblem p{.m = a.size(-2),
                .n = b.size(-1),
                .k = a.size(-1),
                .a = operand(a),
                .b = operand(b),
                .c = c.out_ptr(),
                .c_dtype = c.dtype(),
                .c_row_stride = c.stride(-2),
                .bf16_terms = bf16_terms};
  const auto expanded = [&](const Tensor& t) {
    return raw::expand(t, with_matrix(batch, t.size(-2), t.size(-1))).strides();
  };
  const Strides sa = expanded(a), sb = expanded(b), sc = expanded(c);
  std::vector<Loop> loops;  // innermost first, those that make one merged
  for (int d = batch.size() - 1; d >= 0; --d) {
    if (batch[d] == 0) return raw::fill_(c, 0);
    if (batch[d] == 1) continue;
    const Loop l{batch[d], sa[d], sb[d], sc[d]};
    Loop* inner = loops.empty() ? nullptr : &loops.back();
    if (inner != nullptr && l.a == inner->size * inner->a && l.b == inner->size * inner->b &&
        l.c == inner->size * inner->c)
      inner->size *= l.size;
    else loops.push_back(l);
  }
  std::erase_if(loops, [&](const Loop& l) { return absorb(l, p); });
  std::reverse(loops.begin(), loops.end());
  run(select_product(line, kernel, a.dtype(), p), a.dtype(), p, loops);
}

Tensor transpose(const Tensor& t) { return raw::transpose(t, -2, -1); }

/// Memory for the gradient of operand `t`: f32 where steps of a broadcast add to bf16.
Tensor gradient_like(const Tensor& t, const Shape& batch) {
  return empty(t.shape(), batch_of(t) == batch ? t.dtype() : accumulator(t.dtype()));
}

Tensor row_matrix(const Tensor& a) { return a.dim() == 1 ? raw::unsqueeze(a, 0) : a; }
Tensor column_matrix(const Tensor& b) { return b.dim() == 1 ? raw::unsqueeze(b, -1) : b; }

}  // namespace

Tensor matmul(const Tensor& a_any, const Tensor& b_any) {
  check(a_any.defined() && is_floating(a_any.dtype()) && a_any.dim() >= 1, kOp,
        "a: expected a floating tensor [..., m, k] or [k], got {}", a_any);
  check_computes(kOp, a_any.dtype());
  check(b_any.defined() && b_any.dim() >= 1, kOp, "b: expected a tensor [..., k, n] or [k], got {}",
        b_any);
  check_dense(kOp, "a", a_any), check_dense(kOp, "b", b_any);
  const Tensor a_in = autocast::lower(a_any), b_in = autocast::lower(b_any);
  const Tensor a = row_matrix(a_in), b = column_matrix(b_in);
  check(b.dtype() == a.dtype() && b.size(-2) == a.size(-1), kOp,
        "b: expected {} with {} rows, got {}; a {}", a.dtype(), a.size(-1), b_in, a_in);
  const Shape batch = broadcast_shapes(kOp, batch_of(a), batch_of(b));

  const Shape matrices = with_matrix(batch, a.size(-2), b.size(-1));
  Shape shape = batch;
  if (a_in.dim() > 1) shape.push_back(a.size(-2));
  if (b_in.dim() > 1) shape.push_back(b.size(-1));
  const Tensor y = empty(shape, a.dtype());
  multiply("matmul_fwd", batch, a, b, raw::reshape(y, matrices));

  return record(kOp, y, {a_in, b_in},
                [=, a = SavedTensor(kOp, a), b = SavedTensor(kOp, b), a_shape = a_in.shape(),
                 b_shape = b_in.shape()](const Tensor& dy_any, Needs needs) -> Tensors {
                  const Tensor dy = raw::reshape(dy_any, matrices);
                  Tensors gradients(2);
                  if (needs[0]) {
                    const Tensor da = gradient_like(a.get(), batch);
                    multiply("matmul_bwd_a", batch, dy, transpose(b.get()), da);
                    gradients[0] = raw::reshape(da, a_shape);
                  }
                  if (needs[1]) {
                    const Tensor db = gradient_like(b.get(), batch);
                    multiply("matmul_bwd_b", batch, transpose(a.get()), dy, db);
                    gradients[1] = raw::reshape(db, b_shape);
                  }
                  return gradients;
                });
}

}  // namespace quern
