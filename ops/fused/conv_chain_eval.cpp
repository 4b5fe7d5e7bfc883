// conv_chain in evaluation: a batch norm by running statistics is a factor and a summand a channel.
// The factor is folded into the weight when that is packed; the sums of the convolution start from
// the summand. A gate's factors go into the next weight, an image's at a time, where that is less
// than what they would multiply.
#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "quern/ops/adaptive_avg_pool2d.h"
#include "quern/ops/detail/chain_strips.h"
#include "quern/ops/detail/conv_stage.h"
#include "quern/ops/detail/elementwise.h"
#include "quern/ops/detail/packed_copy.h"
#include "quern/ops/kernels/work.h"
#include "quern/tensor/raw.h"
#include "quern/tensor/span.h"

namespace quern {
namespace {

using namespace kernels;
using namespace detail;
using enum ConvChain::Shortcut;

const std::byte* at(const void* p, int64_t bytes) {
  return static_cast<const std::byte*>(p) + bytes;
}
std::byte* at(void* p, int64_t bytes) { return static_cast<std::byte*>(p) + bytes; }

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
    for (int64_t o = 0; o < factors.numel(); ++o, from += items, to += items)
      for (int64_t i = 0; i < items; ++i) to[i] = static_cast<T>(from[i] * factor[o]);
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
    PackingParameters parameters = packing_parameters(plan);
    parameters.back() = std::bit_cast<int64_t>(s.eps);
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
void run(const ConvPlan& plan, const FoldedWeight& folded, const ConvStage& stage, const void* x,
         void* y, const void* residual, Activation activation) {
  const Span span = Span::of_module(stage.module);
  plan.run(x, folded.weight(), y, kernels::activate(folded.shift(), residual, activation));
}
void run(const ConvPlan& plan, const ConvStage& stage, const void* x, void* y, const void* residual,
         Activation activation) {
  run(plan, FoldedWeight(plan, stage), stage, x, y, residual, activation);
}

auto plan_of(const ConvProblem& p) { return conv_plan(p, ConvPass::forward); }

/// The same of x times a gate's factors, which every image's weight is multiplied by.
void run_gated(ConvProblem p, const ConvStage& stage, const Tensor& x, const Tensor& factors,
               const Tensor& y, const void* residual, Activation activation) {
  const int64_t images = std::exchange(p.n, 1), item = itemsize(p.dtype);
  const auto plan = plan_of(p);
  const BatchNorm norm = norm_of(stage);
  const ChannelNorm by_channel(norm, Moments(norm), p.dtype, ChannelNorm::Center::zero);
  const Tensor weight = scaled(stage.weight, by_channel.scale);
  const Tensor by_image = raw::to(factors, weight.dtype());
  const Workspace packed(plan->packed_bytes());
  const Span span = Span::of_module(stage.module);
  for (int64_t i = 0; i < images; ++i) {
    const Tensor factor = raw::slice(by_image, 0, i, i + 1);
    pack_weight(*plan, raw::binary("conv_chain", Binary::mul, weight, factor), packed.as<void>());
    const int64_t place = i * y.stride(0) * item;
    plan->run(at(x.data_ptr(), i * x.stride(0) * item), packed.as<void>(), at(y.out_ptr(), place),
              kernels::activate(by_channel.shift.data_ptr(),
                                residual ? at(residual, place) : nullptr, activation));
  }
}
/// Are there several times as many pixels as what makes and packs a weight of them passes over?
bool gates_weight(const ConvStage& s, const Tensor& x) {
  return s.groups == 1 && x.numel() >= 4 * x.size(0) * s.weight.numel();
}

/// Stages without a gate between them, and what they begin and end with.
struct Part {
  std::span<const ConvStage> stages;
  Tensor x, factors;  // factors: of the gate before, if x is still to be multiplied by them
  Tensor source;      // what a shortcut begins with
  const ConvChain* end = nullptr;  // whose shortcut it is; null: none
};

/// The output and what the last stage adds to its sums: null, none.
struct Output {
  Output(const Part& part, const ConvProblem& last)
      : y(empty(output_shape(last), part.x.dtype(), MemoryFormat::channels_last)) {
    const Tensor& x = part.source;
    const auto shortcut = part.end == nullptr ? none : part.end->shortcut;
    if (shortcut == identity) residual = x.data_ptr();
    if (shortcut == projection) {
      // Its place is that of the sum, which adds to what it finds there.
      const ConvStage& stage = part.end->projection;
      run(*plan_of(problem_of(stage, x.shape(), x.dtype())), stage, x.data_ptr(), y.out_ptr(),
          nullptr, Activation::none);
      residual = y.data_ptr();
    }
  }
  Tensor y;
  const void* residual = nullptr;
};

/// What strips of a chain run, found once for all that are alike: for one thread.
class StripPlans {
 public:
  explicit StripPlans(std::span<const ConvStage> stages) : stages_(stages) {}
  struct Stage {
    size_t index;
    std::shared_ptr<const ConvPlan> plan;
    FoldedWeight weight;
  };
  const Stage& find(size_t i, const ConvProblem& p) {
    const auto is_it = [&](const Stage& s) { return s.index == i && s.plan->problem == p; };
    if (const auto it = std::ranges::find_if(found_, is_it); it != found_.end()) return *it;
    auto plan = plan_of(p);
    const FoldedWeight weight(*plan, stages_[i]);
    return found_.emplace_back(i, std::move(plan), weight);
  }

 private:
  std::span<const ConvStage> stages_;
  CachedVector<Stage> found_;  // the first strip's of an image, the last one's, those between
};

Tensor run_by_strips(const ChainStrips& strips, const Part& part, const ConvProblem& last) {
  const Output out(part, last);
  const auto* residual = static_cast<const std::byte*>(out.residual);
  const int64_t item = itemsize(part.x.dtype());
  CachedVector<StripPlans> plans(static_cast<size_t>(num_threads()), StripPlans(part.stages));
  strips.run(
      part.x.data_ptr(), out.y.out_ptr(),
      [&](size_t i, const ConvProblem& p, const std::byte* from, std::byte* to, int64_t place) {
        const StripPlans::Stage& found = plans[static_cast<size_t>(thread_index())].find(i, p);
        const bool adds = residual != nullptr && i + 1 == part.stages.size();
        run(*found.plan, found.weight, part.stages[i], from, to,
            adds ? residual + place * item : nullptr, part.stages[i].activation);
      });
  return out.y;
}

Tensor run_one_by_one(std::span<const ConvProblem> problems, const Part& part) {
  Tensor x = part.x;
  ConvProblem p = problems[0];
  auto plan = plan_of(p);
  const auto run_stage = [&](size_t i, const Tensor& y, const void* residual) {
    const ConvStage& stage = part.stages[i];
    if (i == 0 && part.factors.defined())
      run_gated(p, stage, x, part.factors, y, residual, stage.activation);
    else run(*plan, stage, x.data_ptr(), y.out_ptr(), residual, stage.activation);
  };
  for (size_t i = 0; i + 1 < part.stages.size(); ++i) {
    ConvProblem next = problems[i + 1];
    auto next_plan = plan_of(next);
    // Written with the zero padding between rows that a 3×3 reads, which need not copy it then.
    if (const int64_t gap = plan->kernel->takes_gaps ? next_plan->wanted_gap() : 0; gap > 0) {
      p.y_gap = next.x_gap = gap;
      plan = plan_of(p), next_plan = plan_of(next);
    }
    const Tensor y = room_for(p);
    run_stage(i, y, nullptr);
    x = y, p = next, plan = std::move(next_plan);
  }
  const Output out(part, p);
  run_stage(part.stages.size() - 1, out.y, out.residual);
  return out.y;
}

Tensor run_part(const Part& part) {
  CachedVector<ConvProblem> problems;
  problems.reserve(part.stages.size());
  Shape shape = part.x.shape();
  for (const ConvStage& stage : part.stages) {
    problems.push_back(problem_of(stage, shape, part.x.dtype()));
    shape = output_shape(problems.back());
  }
  const ChainStrips strips(problems);
  return strips.pay() && !part.factors.defined() ? run_by_strips(strips, part, problems.back())
                                                 : run_one_by_one(problems, part);
}

}  // namespace

Tensor detail::conv_chain_eval(const Tensor& x_any, const ConvChain& chain) {
  Part part;
  part.x = part.source = raw::contiguous(x_any, MemoryFormat::channels_last);
  for (auto rest = chain.stages; !rest.empty();) {
    part.stages = rest.first(stages_to_gate(rest));
    rest = rest.subspan(part.stages.size());
    if (rest.empty()) part.end = &chain;
    part.x = run_part(part);
    part.factors = {};
    const ConvStage& last = part.stages.back();
    if (!last.gate) continue;
    part.factors = gate_factors(last, adaptive_avg_pool2d(part.x, 1));
    if (!rest.empty() && gates_weight(rest.front(), part.x)) continue;
    part.x = raw::contiguous(raw::binary("conv_chain", Binary::mul, part.x, part.factors),
                             MemoryFormat::channels_last);
    part.factors = {};
  }
  return raw::contiguous(part.x, x_any.format());
}

}  // namespace quern
