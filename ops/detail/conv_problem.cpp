#include "quern/ops/detail/conv_problem.h"

#include <map>
#include <mutex>

#include "quern/ops/autocast.h"
#include "quern/ops/detail/matrix.h"
#include "quern/ops/detail/packed_copy.h"
#include "quern/ops/kernels/conv/live_taps.h"
#include "quern/tensor/fork.h"
#include "quern/tensor/raw.h"

namespace quern::detail {
namespace {

using namespace kernels;
constexpr std::string_view kOp = "conv2d";

void check_pair(std::string_view name, Pair value, int64_t least) {
  constexpr int64_t most = INT32_MAX;  // keeps sums and products of sizes within int64
  check(value.h >= least && value.w >= least && value.h <= most && value.w <= most, kOp,
        "{}: expected {}..{}, got {}", name, least, most, value);
}

}  // namespace

void check_conv_operands(const Tensor& x, const Tensor& weight) {
  check(x.defined() && is_floating(x.dtype()) && x.dim() == 4 && x.numel() > 0, kOp,
        "x: expected a floating, non-empty tensor [N,C,H,W], got {}", x);
  check_computes(kOp, x.dtype());
  check(weight.defined() && weight.dim() == 4 && weight.numel() > 0, kOp,
        "weight: expected a non-empty tensor [O,C/groups,KH,KW], got {}", weight);
  const auto casts = [](const Tensor& t) {
    return t.dtype() == DType::f32 || t.dtype() == DType::bf16;
  };
  check(weight.dtype() == x.dtype() || (autocast_enabled() && casts(x) && casts(weight)), kOp,
        "weight: expected x's dtype, {}, got {}", x.dtype(), weight.dtype());
}

ConvProblem conv_problem(const Shape& x, DType dtype, MemoryFormat format, const Tensor& weight,
                         Pair stride, Pair padding, Pair dilation, int64_t groups) {
  check_pair("stride", stride, 1);
  check_pair("padding", padding, 0);
  check_pair("dilation", dilation, 1);
  check(groups >= 1 && x[1] % groups == 0 && weight.size(0) % groups == 0, kOp,
        "groups: expected a divisor of {} input and {} output channels, got {}", x[1],
        weight.size(0), groups);
  check(weight.size(1) == x[1] / groups, kOp,
        "weight: expected {} input channels (groups={}), got {}; input {}, weight {}",
        x[1] / groups, groups, weight.size(1), x, weight.shape());
  const auto outputs = [&](int d, int64_t stride, int64_t padding, int64_t dilation) {
    const int64_t padded = x[d] + 2 * padding, reach = dilation * (weight.size(d) - 1) + 1;
    check(
        reach <= padded, kOp,
        "weight: expected a kernel (dilated: {}) within the padded input ({}) along {}; input {}, "
        "weight {}",
        reach, padded, d == 2 ? "height" : "width", x, weight.shape());
    return (padded - reach) / stride + 1;
  };
  return {.n = x[0],
          .ic = x[1],
          .ih = x[2],
          .iw = x[3],
          .oc = weight.size(0),
          .oh = outputs(2, stride.h, padding.h, dilation.h),
          .ow = outputs(3, stride.w, padding.w, dilation.w),
          .kh = weight.size(2),
          .kw = weight.size(3),
          .stride_h = stride.h,
          .stride_w = stride.w,
          .pad_h = padding.h,
          .pad_w = padding.w,
          .dilation_h = dilation.h,
          .dilation_w = dilation.w,
          .groups = groups,
          .dtype = dtype,
          .format = format};
}

ConvProblem conv_problem(const Tensor& x, const Tensor& weight, Pair stride, Pair padding,
                         Pair dilation, int64_t groups) {
  check_conv_operands(x, weight);
  return conv_problem(x.shape(), x.dtype(), x.format(), weight, stride, padding, dilation, groups);
}

namespace {

/// Tiles of bf16 multiply up to 32 channels at a time.
bool padding_costs_more(const ConvProblem& p) {
  return p.groups > 1 && std::min(p.ic, p.oc) / p.groups < 16;
}

/// By the multiplier, unless f32 is as fast.
ConvChoice choose(const ConvProblem& problem, ConvPass pass, const Multiplier& m) {
  if (m.bf16_terms != 0) {
    const ConvChoice ieee = choose_conv(problem, pass);
    // Winograd's F(4×4, 3×3) has to save multiplications by a factor well above bf16's speed, since
    // its transforms take time, too; so do the sums of taps in kn2row.
    if (ieee.saving() > 1.75 * m.speed || padding_costs_more(problem)) return ieee;
    // To transpose both operands takes so long there that a bf16 of twice the speed saves nothing.
    if (pass == ConvPass::wgrad && problem.format == MemoryFormat::contiguous && m.speed <= 2)
      return ieee;
  }
  return choose_conv(problem, pass, &m.kernel, m.bf16_terms);
}

/// All that a plan depends on.
struct PlanKey {
  ConvProblem problem;
  ConvPass pass;
  const GemmKernel* gemm;
  int bf16_terms;
  double speed;
  Isa cap;
  int threads;  // how many cells are worth cutting
  auto operator<=>(const PlanKey&) const = default;
};

struct Plans {
  static constexpr size_t kMost = 1024;
  std::mutex mutex;
  std::map<PlanKey, std::shared_ptr<const ConvPlan>> kept;
  Plans() { hold_across_fork(mutex); }
};

}  // namespace

std::shared_ptr<const ConvPlan> conv_plan(const ConvProblem& problem, ConvPass pass) {
  const Multiplier m = select_multiplier(problem.dtype);
  const auto make = [&] {
    const ConvProblem live = problem.with_live_taps();
    auto plan = plan_conv(choose(live, pass, m));
    return live == problem ? std::move(plan) : plan_of_live_taps(problem, std::move(plan));
  };
  if (verbosity() == Verbosity::dispatch) return make();  // tells why, each time
  static Plans& plans = *new Plans;  // never destroyed: static models may infer after it
  const PlanKey key{problem, pass, &m.kernel, m.bf16_terms, m.speed, isa_cap(), num_threads()};
  const std::lock_guard lock(plans.mutex);
  if (const auto found = plans.kept.find(key); found != plans.kept.end()) return found->second;
  if (plans.kept.size() >= Plans::kMost) plans.kept.clear();
  return plans.kept[key] = make();
}

void pack_weight(const ConvPlan& plan, const Tensor& weight, void* packed) {
  const DType dtype = plan.problem.dtype;
  const bool rounds = dtype == DType::bf16 && weight.dtype() == DType::f32;  // on the way
  const Tensor source = raw::contiguous(rounds ? weight : raw::to(weight, dtype));
  plan.pack(source.data_ptr(), source.dtype(), packed);
}

PackingParameters packing_parameters(const ConvPlan& plan) {
  const ConvProblem& p = plan.problem;
  const auto [rows, columns] = p.live_taps();
  return {static_cast<int64_t>(plan.pass),
          plan.bf16_terms,
          p.groups,
          p.stride_h,
          p.stride_w,
          p.pad_h,
          p.pad_w,
          p.dilation_h,
          p.dilation_w,
          rows.begin * p.kh + rows.size,
          columns.begin * p.kw + columns.size};
}

namespace {

/// f(the plan, the weight as it has packed it).
template <class F>
void with_packed(ConvProblem p, ConvPass pass, const Tensor& weight, const Epilogue& epilogue,
                 const ChannelMap& prologue, F f) {
  p.maps = prologue.scale != nullptr, p.sums = epilogue.first != nullptr;
  const auto plan = conv_plan(p, pass);
  const auto packed = packed_copy(
      weight, plan->kernel->name, *plan->gemm, plan->packed_bytes(),
      [&](void* to) { pack_weight(*plan, weight, to); }, packing_parameters(*plan));
  f(*plan, packed->data());
}

}  // namespace

void convolve(const ConvProblem& problem, ConvPass pass, const Tensor& source, const Tensor& weight,
              const Tensor& out, const Epilogue& epilogue, const ChannelMap& prologue) {
  with_packed(problem, pass, weight, epilogue, prologue,
              [&](const ConvPlan& plan, const void* packed) {
                plan.run(source.data_ptr(), packed, out.out_ptr(), epilogue, prologue);
              });
}

bool differentiates_at_once(const ConvProblem& problem) {
  return problem.groups > 1 && conv_plan(problem, ConvPass::dgrad)->differentiates_at_once();
}

Tensor convolve_back(const ConvProblem& problem, const Tensor& dy, const Tensor& weight,
                     const Tensor& dx, const Epilogue& epilogue) {
  const Tensor dw = empty(weight.shape(), accumulator(problem.dtype));
  with_packed(problem, ConvPass::dgrad, weight, epilogue, {},
              [&](const ConvPlan& plan, const void* packed) {
                plan.run_both(dy.data_ptr(), packed, dx.out_ptr(), dw.out_ptr(), epilogue);
              });
  return dw;
}

Tensor conv_weight_gradient(const ConvProblem& problem, const Shape& shape, const Tensor& x,
                            const Tensor& dy, const ChannelMap& prologue) {
  ConvProblem p = problem;
  p.maps = prologue.scale != nullptr;
  const Tensor dw = empty(shape, accumulator(p.dtype));
  conv_plan(p, ConvPass::wgrad)
      ->run(x.data_ptr(), dy.data_ptr(), dw.out_ptr(), Epilogue{}, prologue);
  return dw;
}

}  // namespace quern::detail
