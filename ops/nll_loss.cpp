#include "quern/autograd/node.h"
#include "quern/ops/autocast.h"
#include "quern/ops/detail/class_targets.h"
#include "quern/tensor/parallel.h"
#include "quern/tensor/raw.h"
#include "quern/tensor/span.h"

namespace quern {

using namespace detail;

namespace {
constexpr int64_t kRows = 8192;  // which a thread takes: to wake another takes as long as 4096
}

Tensor nll_loss(const Tensor& input, const Tensor& target, const Tensor& weight,
                int64_t ignore_index, Reduction reduction) {
  const ClassTargets targets("nll_loss", input, target, weight, ignore_index);
  const Span span("nll_loss");
  const Tensor log_p = autocast::widen(input);
  const Tensor x = raw::contiguous(log_p, log_p.format());
  const Tensor losses = empty({targets.rows()}, DType::f64);

  visit_floating("nll_loss", x.dtype(), [&]<class T>(std::type_identity<T>) {
    const T* from = x.data<T>();
    double* loss = losses.out<double>();
    parallel_chunks(targets.rows(), kRows, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t t = targets.target(row);
        loss[row] = targets.ignored(row)
                        ? 0
                        : -targets.weight(t) * static_cast<double>(from[targets.offset(row, t)]);
      }
    });
  });
  Tensor y = targets.reduce(losses, reduction, x.dtype());
  return record("nll_loss", y, {log_p},
                [targets, reduction, shape = x.shape(), format = x.format()](const Tensor& dy,
                                                                             Needs) -> Tensors {
                  const Tensor g = targets.spread(dy, reduction);
                  const Tensor dx = zeros(shape, dy.dtype(), format);
                  visit_floating("nll_loss", dx.dtype(), [&]<class T>(std::type_identity<T>) {
                    T* to = dx.out<T>();
                    for (int64_t row = 0; row < targets.rows(); ++row) {
                      if (targets.ignored(row)) continue;
                      const int64_t t = targets.target(row);
                      to[targets.offset(row, t)] =
                          static_cast<T>(-targets.weight(t) * g.data<double>()[row]);
                    }
                  });
                  return {dx};
                });
}

}  // namespace quern
