// conv_chain in evaluation: a batch norm by running statistics is a factor and a summand a channel.
// The factor is folded into the weight when that is packed; the sums of the convolution start from
// the summand.
#include <bit>
#include <cstring>
#include <utility>

#include "quern/ops/detail/conv_stage.h"
#include "quern/ops/detail/packed_copy.h"
#include "quern/ops/kernels/work.h"
#include "quern/tensor/raw.h"
#include "quern/tensor/span.h"

namespace quern {
namespace {

using namespace kernels;
using namespace detail;
using enum ConvChain::Shortcut;

/// Of its y; with a gap after each row and before the first, these are zeros.
Tensor room_for(const ConvProblem& p) {
  if (p.y_gap == 0) return empty(output_shape(p), p.dtype, p.format);
  const int64_t pixel = p.oc, row = (p.ow + p.y_gap) * pixel, gap = p.y_gap * pixel;
  const Tensor all = empty({p.n * p.oh * row + gap}, p.dtype);
  raw::fill_(raw::as_strided(all, {p.n * p.oh + 1, gap}, {row, 1}, 0), 0);
  return raw::as_strided(all, output_shape(p), {p.oh * row, 1, row, pixel}, gap);
}

/// The filters times `factors`, one a filter, in the factors' dtype.
Tensor scaled(const Tensor& weight, const Tensor& factors) {
  const Tensor filters = raw::contiguous(raw::to(weight, factors.dtype()));
  const Tensor result = empty(filters.shape(), filters.dtype());
  const int64_t items = filters.numel() / factors.numel();
  visit_floating("conv_chain", factors.dtype(), [&]<class T>(std::type_identity<T>) {
    const T *from = filters.data<T>(), *factor = factors.data<T>();
    T* to = result.out<T>();
    for (int64_t i = 0; i < result.numel(); ++i)
      to[i] = static_cast<T>(from[i] * factor[i / items]);
  });
  return result;
}

/// The weight of a stage with its norm folded in, rounded once, and the norm's summands [channels]:
/// f32, or f64 beside f64. Kept between calls as long as nothing that they are made of changes.
class FoldedWeight {
 public:
  FoldedWeight(const ConvPlan& plan, const ConvStage& s)
      : weight_bytes_(round_up(plan.packed_bytes(), 64)) {
    const auto fold = [&](void* memory) {
      const BatchNorm norm = norm_of(s);
      const ChannelNorm by_channel(norm, Moments(norm), plan.problem.dtype,
                                   ChannelNorm::Center::zero);
      pack_weight(plan, scaled(s.weight, by_channel.scale), memory);
      const Tensor& shift = by_channel.shift;
      std::memcpy(static_cast<std::byte*>(memory) + weight_bytes_, shift.data_ptr(),
                  static_cast<size_t>(shift.nbytes()));
    };
    Dims parameters = packing_parameters(plan);
    parameters.push_back(std::bit_cast<int64_t>(s.eps));
    const Tensor with[] = {s.running_mean, s.running_var, s.bn_weight, s.bn_bias};
    const int64_t shift_bytes = plan.problem.oc * static_cast<int64_t>(sizeof(double));
    both_ = packed_copy(s.weight, plan.kernel->name, *plan.gemm, weight_bytes_ + shift_bytes, fold,
                        parameters, with);
  }
  const void* weight() const { return both_->data(); }
  const void* shift() const { return both_->data() + weight_bytes_; }

 private:
  int64_t weight_bytes_;
  std::shared_ptr<const Storage> both_;
};

/// activation(batch_norm(conv(x)) + residual) to y
void run(const ConvPlan& plan, const ConvStage& stage, const Tensor& x, const Tensor& y,
         const void* residual, Activation activation) {
  const Span span = Span::of_module(stage.module);
  const FoldedWeight folded(plan, stage);
  plan.run(x.data_ptr(), folded.weight(), y.out_ptr(),
           kernels::activate(folded.shift(), residual, activation));
}

}  // namespace

Tensor detail::conv_chain_eval(const Tensor& x_any, const ConvChain& chain) {
  const Tensor x = raw::contiguous(x_any, MemoryFormat::channels_last);
  Tensor y = x;
  const auto plan_of = [](const ConvProblem& p) { return conv_plan(p, ConvPass::forward); };
  ConvProblem p = problem_of(chain.stages[0], x.shape(), x.dtype());
  auto plan = plan_of(p);
  for (size_t i = 0; i + 1 < chain.stages.size(); ++i) {
    ConvProblem next = problem_of(chain.stages[i + 1], output_shape(p), x.dtype());
    auto next_plan = plan_of(next);
    // Written with the zero padding between rows that a 3×3 reads, which need not copy it then.
    if (const int64_t gap = plan->kernel->takes_gaps ? next_plan->wanted_gap() : 0; gap > 0) {
      p.y_gap = next.x_gap = gap;
      plan = plan_of(p), next_plan = plan_of(next);
    }
    const Tensor input = std::exchange(y, room_for(p));
    run(*plan, chain.stages[i], input, y, nullptr, chain.stages[i].activation);
    p = next, plan = std::move(next_plan);
  }
  // The projection's place is that of the sum: the last stage adds to what it finds there.
  const Tensor out = empty(output_shape(p), x.dtype(), MemoryFormat::channels_last);
  if (chain.shortcut == projection)
    run(*plan_of(problem_of(chain.projection, x.shape(), x.dtype())), chain.projection, x, out,
        nullptr, Activation::none);
  const void* residual = chain.shortcut == none         ? nullptr
                         : chain.shortcut == projection ? out.data_ptr()
                                                        : x.data_ptr();
  run(*plan, chain.stages.back(), y, out, residual, chain.stages.back().activation);
  return raw::contiguous(out, x_any.format());
}

}  // namespace quern
