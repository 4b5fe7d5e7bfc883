// The backward pass of conv_chain, and its last step forward, which that may make again.
#include "quern/ops/detail/trained_chain.h"

#include "quern/autograd/accumulate.h"
#include "quern/ops/detail/elementwise.h"
#include "quern/ops/kernels/norm/batch_norm.h"
#include "quern/tensor/raw.h"
#include "quern/tensor/verbose.h"

namespace quern::detail {
namespace {

using namespace kernels;
constexpr std::string_view kOp = "conv_chain";

/// `tensors`: like y, read or written
void report(VerboseOp& line, const char* kernel, const TrainedStage& stage, int64_t tensors) {
  if (!line) return;
  line.set(kernel, to_string(stage.y.shape()),
           fmt::format("{}:channels_last", stage.problem.dtype));
  line.set_work(0, tensors * stage.y.nbytes());
}

/// `dw`: where the weight's gradient goes if the same pass computes it, of the epilogue's x; or
/// null.
void input_gradient(const TrainedStage& stage, const Tensor& dy, const Tensor& dx,
                    const Epilogue& epilogue, Tensor* dw = nullptr) {
  const Span span = Span::of_backward("conv2d", stage.module);
  if (dw) *dw = convolve_back(stage.problem, dy, stage.weight.get(), dx, epilogue);
  else convolve(stage.problem, ConvPass::dgrad, dy, stage.weight.get(), dx, epilogue);
}

}  // namespace

void TrainedChain::make_mask() {
  if (!only_clamps(last().activation) || last().activation == Activation::none) return;
  const BatchNormSize size = last().size();
  mask = empty({size.images * size.pixels,
                mask_words(size.channels) * static_cast<int64_t>(sizeof(MaskWord))},
               DType::u8);
}

Tensor TrainedChain::join(const Tensor& input, MaskWord* bits, double* sums) const {
  VerboseOp line("conv_chain_join_fwd");
  const JoinKernel& kernel = select_join_kernel(last().problem.dtype);
  report(line, kernel.name, last(), shortcut == Shortcut::none ? 2 : 3);
  Tensor result = empty_like(last().y);
  JoinSide other;
  if (shortcut == Shortcut::projection) other = projection().side();
  if (shortcut == Shortcut::identity) other.v = input.data_ptr();
  void* const out = result.out_ptr();
  if (sums) join_forward_sums(kernel, last().size(), last().side(), out, sums);
  else join_forward(kernel, last().size(), last().side(), other, out, bits);
  return result;
}

ChannelGradients TrainedChain::channel_gradients(size_t i, const double* dz, const double* dzy,
                                                 Tensors& gradients) const {
  ChannelGradients g(stages[i].norm, stages[i].bn_weight.get(), dz, dzy, stages[i].count());
  gradients[StagePlaces(i).bn_weight] = g.weight;
  gradients[StagePlaces(i).bn_bias] = g.bias;
  return g;
}

std::pair<Tensor, Tensor> TrainedChain::part(const Tensor& dout_any, bool wanted,
                                             Tensors& gradients) const {
  const bool ours = solely_owned(dout_any);
  const Tensor dout = raw::contiguous(dout_any, MemoryFormat::channels_last);
  const Tensor place = ours || !dout.is_same(dout_any) ? dout : empty_like(dout);
  const Tensor dy = wanted ? empty_like(dout) : place, dshortcut = wanted ? place : Tensor();

  VerboseOp line("conv_chain_join_bwd");
  const JoinKernel& kernel = select_join_kernel(last().problem.dtype);
  const int64_t sides = shortcut == Shortcut::projection ? 2 : 1;  // their v
  report(line, kernel.name, last(), 1 + sides + (wanted ? 2 : 1));
  const int64_t channels = last().problem.oc;
  const Tensor sums = empty({3, channels}, DType::f64);
  double *dz = sums.out<double>(), *dzy = dz + channels, *dzs = dzy + channels;
  JoinSide branch = last().side(), side = {};
  if (shortcut == Shortcut::projection) side = projection().side();
  else dzs = nullptr;
  // The exponential of a smooth activation, which no shortcut meets, is computed once, and so is
  // the gradient behind a gate: dz takes the place of dout.
  const bool at_once = gate || !only_clamps(last().activation);
  if (at_once) branch.dv = dy.out_ptr();
  JoinGradient gradient{dout.data_ptr(), mask_bits()};
  Tensor factors, shifts;
  if (gate) {
    const auto parameters = [&](const Tensor& t) {
      return raw::contiguous(raw::to(t, accumulator(t.dtype())));
    };
    const auto pixels = static_cast<double>(last().size().pixels);
    factors = parameters(gate->factors.get());
    shifts = raw::binary(kOp, Binary::div, parameters(gate->dmeans), pixels);
    gradient.scale = factors.data_ptr(), gradient.shift = shifts.data_ptr();
  }
  join_reduce(kernel, last().size(), branch, side, gradient, dz, dzy, dzs);

  const ChannelGradients g = channel_gradients(depth() - 1, dz, dzy, gradients);
  if (at_once) {
    branch = last().side(g, dy);
    branch.map.activation = Activation::none;
    join_apply(kernel, last().size(), branch, {}, {dy.data_ptr()});
  } else if (dzs) {
    const ChannelGradients p = channel_gradients(depth(), dz, dzs, gradients);
    side = projection().side(p, dshortcut);
    join_apply(kernel, last().size(), last().side(g, dy), side, gradient);
  } else {
    side.dv = wanted ? dshortcut.out_ptr() : nullptr;
    join_apply(kernel, last().size(), last().side(g, dy), side, gradient);
  }
  return {dy, dshortcut};
}

Tensor TrainedChain::pass_back(size_t i, const Tensor& dy, Tensors& gradients, Tensor* dw) const {
  const TrainedStage& stage = stages[i - 1];
  const Tensor sums = empty({2, stage.problem.oc}, DType::f64), dz = empty_like(stage.y);
  double *sum_dz = sums.out<double>(), *sum_dzy = sum_dz + stage.problem.oc;
  input_gradient(stages[i], dy, dz,
                 {.kind = Epilogue::Kind::gradient,
                  .map = stage.map(),
                  .x = stage.y.data_ptr(),
                  .first = sum_dz,
                  .second = sum_dzy},
                 dw);
  const ChannelGradients g = channel_gradients(i - 1, sum_dz, sum_dzy, gradients);

  VerboseOp line("batch_norm_bwd");
  const BatchNormKernel& kernel = select_batch_norm_kernel(stage.problem.dtype, true);
  report(line, kernel.name, stage, 3);
  batch_norm_backward_apply(kernel, stage.size(), stage.y.data_ptr(), dz.data_ptr(),
                            stage.norm.center.data_ptr(), g.a.data_ptr(), g.b.data_ptr(),
                            g.c.data_ptr(), dz.out_ptr());
  return dz;
}

Tensors TrainedChain::backward(const Tensor& dout, Needs needs) {
  Tensors gradients(StagePlaces(stages.size()).weight);
  with_tasks([&](Tasks& beside) { pass_all_back(dout, needs, gradients, beside); });
  return gradients;
}

void TrainedChain::pass_all_back(const Tensor& dout, Needs needs, Tensors& gradients,
                                 Tasks& beside) {
  // Freed as soon as the tasks are through with it, too, unless another pass comes: the largest
  // tensors are still to be made.
  const auto done_with = [&](auto&... saved) {
    if (!needs.again()) ((saved = {}), ...);
  };
  const auto needs_weight = [&](size_t i) { return needs[StagePlaces(i).weight]; };
  const auto differentiate_weight = [&](size_t i, Tensor input, const TrainedStage* before,
                                        Tensor dy) {
    if (!needs_weight(i)) return;
    const TrainedStage& stage = stages[i];
    Tensor& place = gradients[StagePlaces(i).weight];
    beside.run([&stage, &place, shape = stage.weight.get().shape(), input, before, dy] {
      const Span span = Span::of_backward("conv2d", stage.module);
      place = conv_weight_gradient(stage.problem, shape, input, dy,
                                   before ? before->map() : ChannelMap{});
    });
  };
  const bool projected = shortcut == Shortcut::projection;
  const bool wanted = shortcut == Shortcut::identity
                          ? needs[kX]
                          : projected && (needs[kX] || needs_weight(depth()));
  auto [dy, dshortcut] = part(dout, wanted, gradients);
  done_with(mask, stages[depth() - 1].y, stages.back().y);
  const auto place_at_once = [&](size_t i) {
    return needs_weight(i) && differentiates_at_once(stages[i].problem)
               ? &gradients[StagePlaces(i).weight]
               : nullptr;
  };
  for (size_t i = depth() - 1; i > 0; --i) {
    Tensor* const dw = place_at_once(i);
    if (!dw) differentiate_weight(i, stages[i - 1].y, before(i), dy);
    dy = pass_back(i, dy, gradients, dw);
    done_with(stages[i - 1].y);
  }
  if (shortcut == Shortcut::none && needs[kX])
    if (Tensor* const dw = place_at_once(0)) {
      const Tensor input = x.get(), dx = empty_like(input);
      input_gradient(stages[0], dy, dx, {.x = input.data_ptr()}, dw);
      done_with(x);
      gradients[kX] = dx;
      return;
    }
  if (needs_weight(0) || (projected && needs_weight(depth()))) {
    const Tensor input = x.get();
    differentiate_weight(0, input, nullptr, dy);
    if (projected) differentiate_weight(depth(), input, nullptr, dshortcut);
  }
  done_with(x);
  if (!needs[kX]) return;

  // The projection, which mostly is 1×1 with stride 2, adds to the quarter of the pixels that it
  // has read: the other way round it would write zeros to the other three, for the branch to
  // read.
  const bool add = shortcut == Shortcut::identity;
  const ConvProblem& p = stages[0].problem;
  const Tensor dx = add ? dshortcut : empty(input_shape(p), p.dtype, p.format);
  input_gradient(stages[0], dy, dx, kernels::activate(nullptr, add ? dx.data_ptr() : nullptr));
  if (projected)
    input_gradient(projection(), dshortcut, dx, kernels::activate(nullptr, dx.data_ptr()));
  gradients[kX] = dx;
}

}  // namespace quern::detail
