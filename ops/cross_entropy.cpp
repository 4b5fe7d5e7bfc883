#include "quern/autograd/node.h"
#include "quern/ops/autocast.h"
#include "quern/ops/detail/class_targets.h"
#include "quern/ops/detail/report.h"
#include "quern/ops/kernels/reduce/row.h"
#include "quern/tensor/raw.h"

namespace quern {
namespace {

using namespace detail;
using namespace kernels;

/// The loss of one row x[n] of which log_sum_exp said `shift` and `log_sum`:
/// Σ_c q[c]·(log_sum - (x[c] - shift)), q = (1-ε)·weight at the target plus ε/C·weight everywhere.
template <class T>
double row_loss(const ClassTargets& targets, int64_t row, const T* x, double shift, double log_sum,
                double smoothing) {
  if (targets.ignored(row)) return 0;
  const auto surprise = [&](int64_t c) {
    return targets.weight(c) * (log_sum - (static_cast<double>(x[c]) - shift));
  };
  const double at_target = (1 - smoothing) * surprise(targets.target(row));
  if (smoothing == 0) return at_target;
  double everywhere = 0;
  for (int64_t c = 0; c < targets.classes(); ++c) everywhere += surprise(c);
  return at_target + smoothing / static_cast<double>(targets.classes()) * everywhere;
}

/// Loss of each row, f64, and its two statistics in `stats` [rows][2].
Tensor forward(const ClassTargets& targets, const Tensor& x, const Tensor& stats,
               double smoothing) {
  VerboseOp line("cross_entropy");
  const RowKernel& kernel = select_row("cross_entropy", RowOp::log_sum_exp, x.dtype());
  report(line, kernel.name, x, x.nbytes());
  const Tensor losses = empty({targets.rows()}, DType::f64);
  const auto run = [&]<class T, class A>(T, A) {
    const int64_t n = targets.classes();
    for_each_row(
        targets.along(), sizeof(T), x.data_ptr(), nullptr, nullptr,
        [&](const RowData& rows) {
          A* out = stats.out<A>() + 2 * rows.index;
          kernel.run({.n = n, .count = rows.count, .x = rows.x, .out = out});
          for (int64_t r = 0; r < rows.count; ++r, out += 2)
            losses.out<double>()[rows.index + r] =
                row_loss(targets, rows.index + r, static_cast<const T*>(rows.x) + r * n,
                         static_cast<double>(out[0]), static_cast<double>(out[1]), smoothing);
        },
        rows_at_once(n));
  };
  switch (x.dtype()) {
    case DType::bf16: run(bfloat16(), float()); break;
    case DType::f32: run(float(), float()); break;
    default: run(double(), double());
  }
  return losses;
}

/// dx[c] = g·(Σq · softmax(x)[c] - q[c]) in one pass over x.
Tensor backward(const ClassTargets& targets, const Tensor& x, const Tensor& stats, const Tensor& g,
                const Tensor& weight, double smoothing) {
  VerboseOp line("cross_entropy_backward");
  const RowKernel& kernel = select_row("cross_entropy", RowOp::cross_entropy_backward, x.dtype());
  report(line, kernel.name, x, 2 * x.nbytes());
  const Tensor dx = empty_like(x);
  const double spread = smoothing / static_cast<double>(targets.classes());
  const double weights = targets.weight_of_classes();
  for_each_row(targets.along(), itemsize(x.dtype()), x.data_ptr(), nullptr, dx.out_ptr(),
               [&](const RowData& r) {
                 const double dy = g.data<double>()[r.index];
                 const bool ignored = targets.ignored(r.index);
                 const double at_target =
                     ignored ? 0 : (1 - smoothing) * targets.weight(targets.target(r.index));
                 Row row{.n = targets.classes(), .x = r.x, .y = r.y};
                 row.out = stats.out_ptr(2 * r.index);
                 row.weight = weight.defined() ? weight.data_ptr() : nullptr;
                 row.target = ignored ? -1 : targets.target(r.index);
                 row.a = dy * (at_target + spread * weights), row.b = dy * spread,
                 row.c = dy * at_target;
                 kernel.run(row);
               });
  return dx;
}

}  // namespace

Tensor cross_entropy(const Tensor& input, const Tensor& target, const Tensor& weight,
                     int64_t ignore_index, Reduction reduction, double label_smoothing) {
  check(label_smoothing >= 0 && label_smoothing <= 1, "cross_entropy",
        "label_smoothing: expected 0..1, got {}", label_smoothing);
  const ClassTargets targets("cross_entropy", input, target, weight, ignore_index);
  const Tensor logits = autocast::widen(input);
  const Tensor x = raw::contiguous(logits, logits.format());
  const DType statistics = accumulator(x.dtype());
  const Tensor stats = empty({targets.rows(), 2}, statistics);
  const Tensor losses = forward(targets, x, stats, label_smoothing);
  Tensor y = targets.reduce(losses, reduction, x.dtype());

  const Tensor weights = weight.defined() ? raw::contiguous(raw::to(weight, statistics)) : Tensor();
  return record(
      "cross_entropy", y, {logits},
      [=, x = SavedTensor("cross_entropy", x), weights = SavedTensor("cross_entropy", weights)](
          const Tensor& dy, Needs) -> Tensors {
        const Tensor w = weights.defined() ? weights.get() : Tensor();
        const Tensor g = targets.spread(dy, reduction);
        return {backward(targets, x.get(), stats, g, w, label_smoothing)};
      });
}

}  // namespace quern
