#include "quern/optim/clip_grad.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "quern/ops/kernels/accumulator.h"
#include "quern/optim/detail/sum_of_squares.h"
#include "quern/tensor/parallel.h"
#include "quern/tensor/raw.h"
#include "quern/tensor/span.h"

namespace quern::optim {
namespace {

constexpr int64_t kChunk = 16384;

/// Of a dense tensor.
double sum_of_squares(const Tensor& t) {
  const int64_t n = t.numel();
  std::vector<double> sums(static_cast<size_t>((n + kChunk - 1) / kChunk));
  visit_floating("clip_grad_norm_", t.dtype(), [&]<class T>(std::type_identity<T>) {
    const T* x = t.data<T>();
    parallel_chunks(n, kChunk, [&](int64_t begin, int64_t end) {
      SumOfSquares squares;
      squares.add(x + begin, end - begin);
      sums[static_cast<size_t>(begin / kChunk)] = squares.value();
    });
  });
  double sum = 0;
  for (double s : sums) sum += s;
  return sum;
}

struct Gradient {
  Tensor grad;
  Tensor dense;  // the gradient itself, unless that is a strided view
};

/// Cannot fail, so that all gradients are scaled or none.
void scale_(const Gradient& gradient, double factor) {
  const auto& [grad, dense] = gradient;
  visit_floating("clip_grad_norm_", dense.dtype(),
                 [&dense = dense, factor]<class T>(std::type_identity<T>) {
                   using Compute = kernels::Accumulator<T>;
                   T* x = dense.out<T>();
                   const Compute by = static_cast<Compute>(factor);
                   parallel_chunks(dense.numel(), kChunk, [&](int64_t begin, int64_t end) {
                     for (int64_t i = begin; i < end; ++i)
                       x[i] = static_cast<T>(static_cast<Compute>(x[i]) * by);
                   });
                 });
  if (dense.is_same(grad)) grad.storage()->bump_version();
  else raw::copy_(grad, dense);
}

}  // namespace

double clip_grad_norm_(const Tensors& params, double max_norm) {
  check(max_norm >= 0, "clip_grad_norm_", "max_norm: expected at least 0, got {}", max_norm);
  const Span span("clip_grad_norm_");
  std::vector<Gradient> gradients;
  double sum = 0;
  for (size_t i = 0; i < params.size(); ++i) {
    check(params[i].defined(), "clip_grad_norm_", "params[{}]: expected a tensor, got undefined",
          i);
    if (const Tensor grad = params[i].grad(); grad.defined()) {
      const Tensor elements = grad.is_sparse() ? grad.values() : grad;
      gradients.push_back({elements, raw::contiguous(elements, elements.format())});
      sum += sum_of_squares(gradients.back().dense);
    }
  }
  const double norm = std::sqrt(sum);
  const double factor = max_norm / (norm + 1e-6);
  if (!(factor >= 1))
    for (const Gradient& gradient : gradients) scale_(gradient, factor);
  return norm;
}

}  // namespace quern::optim
