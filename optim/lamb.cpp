#include "quern/optim/lamb.h"

#include <algorithm>
#include <cmath>

#include "quern/optim/detail/check_options.h"
#include "quern/optim/detail/update_pass.h"
#include "quern/tensor/span.h"

namespace quern::optim {
namespace {

constexpr int64_t kChunk = 16384;

/// The step's constants: u = by_m·m / (√v·by_v + eps) + weight_decay·p.
template <class S>
struct Constants {
  S keep, take1, take2, by_m, by_v, eps, weight_decay;
  Constants(const LAMBOptions& o, double t)
      : keep(static_cast<S>(o.beta2)),
        take1(static_cast<S>(1 - o.beta1)),
        take2(static_cast<S>(1 - o.beta2)),
        by_m(static_cast<S>(1 / (1 - std::pow(o.beta1, t)))),
        by_v(static_cast<S>(1 / std::sqrt(1 - std::pow(o.beta2, t)))),
        eps(static_cast<S>(o.eps)),
        weight_decay(static_cast<S>(o.weight_decay)) {}
  S update(S p, S m, S v) const {
    return by_m * m / (std::sqrt(v) * by_v + eps) + weight_decay * p;
  }
};

/// f(i, at) for elements i = begin ... end-1 of the gradient and the places `at` of the parameter
/// that they belong to. `rows`: of a row-sparse gradient; else null.
template <class F>
void each_element(int64_t begin, int64_t end, const int64_t* rows, int64_t width, const F& f) {
  if (rows == nullptr) {
    for (int64_t i = begin; i < end; ++i) f(i, i);
    return;
  }
  for (int64_t i = begin; i < end;) {
    const int64_t row = i / width, stop = std::min(end, (row + 1) * width);
    for (const int64_t shift = (rows[row] - row) * width; i < stop; ++i) f(i, i + shift);
  }
}

/// P: the parameter's type. S: the gradient's and the states', in which it computes. Norms are
/// summed in f64, in chunks that depend on the gradient's size alone.
template <class P, class S>
void update(P* p, const S* g, S* m, S* v, int64_t n, const int64_t* rows, int64_t width,
            const LAMBOptions& o, double t) {
  const Constants<S> c(o, t);
  std::vector<double> of_p(static_cast<size_t>((n + kChunk - 1) / kChunk)), of_u = of_p;
  parallel_chunks(n, kChunk, [&](int64_t begin, int64_t end) {
    double p_squared = 0, u_squared = 0;
    each_element(begin, end, rows, width, [&](int64_t i, int64_t at) {
      m[at] += c.take1 * (g[i] - m[at]);
      v[at] = c.keep * v[at] + c.take2 * g[i] * g[i];
      const S x = static_cast<S>(p[at]);
      const double u = c.update(x, m[at], v[at]);
      p_squared += static_cast<double>(x) * x;
      u_squared += u * u;
    });
    of_p[static_cast<size_t>(begin / kChunk)] = p_squared;
    of_u[static_cast<size_t>(begin / kChunk)] = u_squared;
  });
  double p_squared = 0, u_squared = 0;
  for (size_t i = 0; i < of_p.size(); ++i) p_squared += of_p[i], u_squared += of_u[i];
  const double trust = p_squared > 0 && u_squared > 0 ? std::sqrt(p_squared / u_squared) : 1;
  const S by = static_cast<S>(o.lr * trust);
  parallel_chunks(n, kChunk, [&](int64_t begin, int64_t end) {
    each_element(begin, end, rows, width, [&](int64_t, int64_t at) {
      const S x = static_cast<S>(p[at]);
      p[at] = static_cast<P>(x - by * c.update(x, m[at], v[at]));
    });
  });
}

}  // namespace

LAMB::LAMB(Tensors params, LAMBOptions options)
    : LAMB(std::vector{Group<LAMBOptions>{std::move(params), options}}) {}

LAMB::LAMB(std::vector<Group<LAMBOptions>> groups)
    : OptimizerOf("lamb", {"exp_avg", "exp_avg_sq"}, groups) {
  for (const LAMBOptions& o : options_) {
    check_not_negative("lamb", {{"lr", o.lr},
                                {"beta1", o.beta1},
                                {"beta2", o.beta2},
                                {"eps", o.eps},
                                {"weight_decay", o.weight_decay}});
    check(o.beta1 < 1 && o.beta2 < 1, "lamb", "beta1, beta2: expected less than 1, got {}, {}",
          o.beta1, o.beta2);
  }
  for (size_t group = 0; group < options_.size(); ++group) make_state(group);
}

void LAMB::step() {
  struct Job {
    Slot* slot;
    Tensor dense, grad, rows;  // as in UpdatePass
  };
  std::vector<Job> jobs;
  for (Slot* slot : slots_to_update()) {
    const Tensor &param = slot->param, grad = param.grad();
    const MemoryFormat format = param.format();
    const DType dtype = state_dtype(param.dtype());
    const Tensor values = raw::to(grad.is_sparse() ? grad.values() : grad, dtype);
    jobs.push_back({slot, raw::contiguous(param, format),
                    raw::contiguous(values, grad.is_sparse() ? MemoryFormat::contiguous : format),
                    grad.is_sparse() ? grad.rows() : Tensor()});
    for (Tensor& s : slot->state)
      s = s.defined() ? raw::contiguous(s, format) : zeros(param.shape(), dtype, format);
  }
  const Span span("lamb");
  for (const auto& [slot, dense, grad, rows] : jobs) {
    const LAMBOptions& o = options_[slot->group];
    visit_floating("lamb", dense.dtype(),
                   [&, &dense = dense, &grad = grad, &rows = rows,
                    slot = slot]<class P>(std::type_identity<P>) {
                     using S = std::conditional_t<std::is_same_v<P, double>, double, float>;
                     update(
                         dense.template out<P>(), grad.template data<S>(),
                         slot->state[0].template out<S>(), slot->state[1].template out<S>(),
                         grad.numel(), rows.defined() ? rows.template data<int64_t>() : nullptr,
                         dense.numel() / std::max<int64_t>(1, dense.dim() > 0 ? dense.size(0) : 1),
                         o, static_cast<double>(slot->steps + 1));
                   });
    if (dense.is_same(slot->param)) slot->param.storage()->bump_version();
    else raw::copy_(slot->param, dense);
    ++slot->steps;
  }
}

}  // namespace quern::optim
