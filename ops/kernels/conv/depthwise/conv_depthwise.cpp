// conv_depthwise: convolutions with a filter for each channel or several, or in groups of few
// channels, depthwise_kernel.h.
#include <algorithm>
#include <bit>

#include "quern/ops/kernels/conv/depthwise/depthwise.h"
#include "quern/tensor/storage.h"

namespace quern::kernels {
namespace {

/// Do the kernels take the group's channels as they are?
bool is_of_kernels(Spread group, const DepthwiseKernel& kernel) {
  return group.in == group.out && group.in > 1 && group.in <= kernel.widest_group &&
         std::has_single_bit(static_cast<uint64_t>(group.in));
}
/// The group's channels that the pass sums over, and those it has sums for.
Spread group_of(const ConvProblem& p, ConvPass pass) {
  const int64_t inputs = p.ic / p.groups, outputs = p.oc / p.groups;
  return pass == ConvPass::dgrad ? Spread{outputs, inputs} : Spread{inputs, outputs};
}

/// Of groups of 16, products of matrices take no longer than the kernels, but for the copy of each
/// other pixel, and tiles that rows of outputs do not fill.
bool are_better_as_matrices(const ConvProblem& p, ConvPass pass, const GemmKernel& gemm) {
  const bool fill_tiles = pass != ConvPass::forward || 2 * p.ow > gemm.mr;
  return gemm.run_strip != nullptr || (p.stride_w == 1 && fill_tiles);
}

constexpr int64_t kFew = 8, kMost = 64;  // channels of a group

/// Of more channels, the copy of a step a row takes longer than products of matrices a group; of
/// one output, whose matrices would have one column, not so soon. Planes are read where they lie.
int64_t most_steps(const ConvProblem& p, ConvPass pass, const Spread& group) {
  if (group.out > kFew) return 1;
  const bool planes = pass != ConvPass::wgrad && p.format == MemoryFormat::contiguous && !p.sums &&
                      suits_depthwise_planes(p);
  return group.out == 1 || (planes && group.out <= kFew / 2) ? kMost : kFew;
}
/// Do rows of taps that are no neighbours keep a copy of a step a row from being the window's?
bool needs_index(const ConvProblem& p) { return p.dilation_h > 1 && p.kh > 1; }
bool takes_index(const ConvProblem& p, const Spread& group, const DepthwiseKernel& kernel) {
  return p.format == MemoryFormat::channels_last && kernel.permutes(group.in, group.out);
}

const char* why_not(const ConvProblem& p, ConvPass pass, const GemmKernel& gemm) {
  if (p.groups == 1) return "it is not in groups";
  if (p.dtype == DType::f64) return "f64 is computed by the definition";
  const Spread group = group_of(p, pass);
  const DepthwiseKernel& kernel = select_depthwise_kernel(p.dtype);
  const bool of_kernels = is_of_kernels(group, kernel);
  const int64_t steps = of_kernels ? 1 : group.in;
  if (steps > 1 && steps > most_steps(p, pass, group)) return "groups have many channels";
  if (of_kernels && group.in > kFew && are_better_as_matrices(p, pass, gemm))
    return "groups have many channels";
  if (steps > 1 && needs_index(p) && (p.maps || !takes_index(p, group, kernel)))
    return "its rows of taps are not neighbours";
  // The most that one row of outputs takes of scratch, in panels of up to 64 channels; divided,
  // since the product may overflow.
  const int64_t rows = (p.kh - 1) * p.dilation_h + 2;
  if (std::max(p.iw, p.ow) > cache::kMostScratch / 256 / steps / rows)
    return "scratch for one row of outputs is over 256 MiB";
  return nullptr;
}

constexpr ConvKernel kRecords[] = {
    {.name = "depthwise",
     .why_not = why_not,
     .plan = make_conv_plan<DepthwisePlan>,
     .on_micro_kernels = false},
};

/// Along one axis.
Axis axis_of(ConvPass pass, int64_t input, int64_t output, int64_t kernel, int64_t stride,
             int64_t pad, int64_t dilation) {
  return (pass == ConvPass::dgrad ? dgrad_axis : forward_axis)(input, output, kernel, stride, pad,
                                                               dilation);
}
std::vector<Phase> phases_of(const Axis& axis) {
  std::vector<Phase> all;
  for (int64_t i = 0; i < axis.phases(); ++i) all.push_back(axis.phase(i));
  return all;
}
/// Are the taps of its only phase neighbours?
bool is_dense(const std::vector<Phase>& phases) {
  return phases.size() == 1 && phases[0].offset_step == 1;
}

}  // namespace

DepthwisePlan::DepthwisePlan(const ConvChoice& choice)
    : ConvPlan(choice),
      kernel(select_depthwise_kernel(problem.dtype)),
      channels(pass == ConvPass::dgrad ? problem.ic : problem.oc),
      group(is_of_kernels(group_of(problem, pass), kernel) ? problem.ic / problem.groups : 1),
      spread(group > 1 ? Spread{} : group_of(problem, pass)),
      taps(problem.kh * problem.kw),
      y(axis_of(pass, problem.ih, problem.oh, problem.kh, problem.stride_h, problem.pad_h,
                problem.dilation_h)),
      x(axis_of(pass, problem.iw, problem.ow, problem.kw, problem.stride_w, problem.pad_w,
                problem.dilation_w)),
      y_phases(phases_of(y)),
      x_phases(phases_of(x)),
      index(index_of_channels()),
      slides(is_dense(y_phases) && is_dense(x_phases) && problem.kh == problem.kw &&
             y.stride() == x.stride() && group == 1 && spread.in == 1 &&
             kernel.slides(problem.kw, x.stride())),
      planes(group == 1 && suits_depthwise_planes(problem)) {}

CachedVector<int32_t> DepthwisePlan::index_of_channels() const {
  constexpr int64_t kFewTaps = 6;  // a pixel meets, on the average
  const auto [in, out] = spread;
  if (in == 1 || !takes_index(problem, spread, kernel)) return {};
  if (taps * problem.oh * problem.ow >= kFewTaps * y.source * x.source && !needs_index(problem))
    return {};
  CachedVector<int32_t> of_channels(static_cast<size_t>(padded_channels(channels)));
  for (int64_t c = 0; c < std::ssize(of_channels); ++c)
    of_channels[static_cast<size_t>(c)] =
        static_cast<int32_t>(std::min(c, channels - 1) / out * in);
  return of_channels;
}

int64_t DepthwisePlan::packed_bytes() const {
  if (pass == ConvPass::wgrad) return 0;
  return taps * steps() * padded_channels(channels) * static_cast<int64_t>(sizeof(float));
}

void DepthwisePlan::pack(const void* weight, DType of_weight, void* packed) const {
  const int64_t pitch = padded_channels(channels), of_group = group * spread.in;
  const Workspace wide(channels * of_group * taps * static_cast<int64_t>(sizeof(float)));
  widen(weight, of_weight, wide.as<float>());
  if (kernel.steps(group) < group) pair(wide.as<uint32_t>());
  float* to = static_cast<float*>(packed);
  if (channels < pitch) std::fill_n(to, taps * steps() * pitch, 0.0f);
  // `rows` of the matrix are taps, from one on, of a step.
  const auto copy = [&](int64_t tap, int64_t step, int64_t rows, float* dst, int64_t apart) {
    copy_matrix(sizeof(float), wide.as<float>() + step * taps + tap, 1, steps() * taps, dst, apart,
                rows, channels);
  };
  if (spread.in == 1) {
    for (int64_t i = 0; i < steps(); ++i) copy(0, i, taps, to + i * pitch, steps() * pitch);
    return;
  }
  for (const Phase& phase : y_phases)
    for (int64_t r = 0; r < phase.taps; ++r)
      for (int64_t i = 0; i < spread.in; ++i, to += problem.kw * pitch)
        copy((phase.kernel + r * phase.kernel_step) * problem.kw, i, problem.kw, to, pitch);
}

/// In f32: the weight [channel][channel of the group][tap], for dgrad with channels of a group
/// exchanged, rounded as the problem wants it.
void DepthwisePlan::widen(const void* weight, DType of_weight, float* to) const {
  const auto [in, out] = group_of(problem, pass);
  for (int64_t c = 0; c < channels; ++c)
    for (int64_t i = 0; i < in; ++i, to += taps) {
      const int64_t at = pass == ConvPass::dgrad ? (c / out * in + i) * out + c % out : c * in + i;
      const auto* singles = static_cast<const float*>(weight) + at * taps;
      if (of_weight == DType::bf16)
        std::copy_n(static_cast<const bfloat16*>(weight) + at * taps, taps, to);
      else if (problem.dtype == DType::bf16)
        std::transform(singles, singles + taps, to,
                       [](float v) { return static_cast<float>(bfloat16(v)); });
      else std::copy_n(singles, taps, to);
    }
}

/// [channel][channel of the group][tap], floats that are bf16, to [channel][pair][tap] in place.
void DepthwisePlan::pair(uint32_t* weight) const {
  for (int64_t i = 0; i < channels * steps(); ++i)
    for (int64_t t = 0; t < taps; ++t) {
      const uint32_t *first = weight + 2 * i * taps + t, *second = first + taps;
      weight[i * taps + t] = *first >> 16 | (*second & 0xffff0000);
    }
}

void DepthwisePlan::compute(const void* from, const void* with, void* to, const Epilogue& epilogue,
                            const ChannelMap& prologue) const {
  if (pass == ConvPass::wgrad) run_depthwise_wgrad(*this, from, with, to, prologue);
  else if (planes && is_plain(epilogue))
    run_depthwise_planes(*this, from, with, prologue, epilogue, to);
  else run_depthwise(*this, from, with, prologue, epilogue, to);
}

/// Where dgrad reads dy, and writes dx, where they lie.
bool DepthwisePlan::differentiates_at_once() const {
  return pass == ConvPass::dgrad && problem.ic == problem.groups && problem.oc == problem.ic &&
         problem.format == MemoryFormat::channels_last && problem.oc >= kDepthwiseChannels &&
         std::ranges::all_of(x_phases, [](const Phase& phase) {
           return phase.taps <= 1 || (phase.taps <= kBackwardTaps && phase.offset_step == 1);
         });
}

void DepthwisePlan::compute_both(const void* dy, const void* packed, void* dx, void* dw,
                                 const Epilogue& epilogue) const {
  run_depthwise_backward(*this, dy, packed, dx, static_cast<float*>(dw), epilogue);
}

QUERN_KERNELS(ConvKernel, conv, kRecords)

}  // namespace quern::kernels
