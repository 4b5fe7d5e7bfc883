// conv_chain in training: the forward pass of each stage leaves what its convolution summed up and
// a batch norm a channel, and the backward pass goes from there. Nothing that is normalised is
// stored.
#include <optional>

#include "quern/autograd/accumulate.h"
#include "quern/autograd/grad_mode.h"
#include "quern/autograd/node.h"
#include "quern/ops/convert.h"
#include "quern/ops/detail/conv_stage.h"
#include "quern/ops/kernels/norm/batch_norm.h"
#include "quern/ops/kernels/norm/join.h"
#include "quern/tensor/raw.h"
#include "quern/tensor/tasks.h"
#include "quern/tensor/verbose.h"

namespace quern {
namespace {

using namespace kernels;
using namespace detail;
constexpr std::string_view kOp = "conv_chain";

/// Outputs that backward recomputes one from the other are live at once: at most this many. The
/// next in a row of identity shortcuts is kept, one tensor instead of all of them at the peak of
/// memory.
constexpr int kMaxDepth = 4;

/// A stage after its forward pass.
struct Stage {
  ConvProblem problem;
  SavedTensor weight, bn_weight;
  Tensor y;  ///< of the convolution
  ChannelNorm norm;
  Activation activation;
  std::string_view module;  ///< of the convolution, by its dotted name

  BatchNormSize size() const { return {problem.n, problem.oh * problem.ow, problem.oc}; }
  double count() const { return static_cast<double>(problem.n * problem.oh * problem.ow); }
  /// Reads y as what batch norm and activation make of it.
  ChannelMap map() const {
    return {norm.center.data_ptr(), norm.scale.data_ptr(), norm.shift.data_ptr(), activation};
  }
  JoinSide side() const { return {.v = y.data_ptr(), .map = map()}; }
  JoinSide side(const ChannelGradients& g, const Tensor& dy) const {
    JoinSide s = side();
    s.a = g.a.data_ptr(), s.b = g.b.data_ptr(), s.c = g.c.data_ptr(),
    s.dv = dy.defined() ? dy.out_ptr() : nullptr;
    return s;
  }
};

/// `tensors`: like y, read or written
void report(VerboseOp& line, const char* kernel, const Stage& stage, int64_t tensors) {
  if (!line) return;
  line.set(kernel, to_string(stage.y.shape()),
           fmt::format("{}:channels_last", stage.problem.dtype));
  line.set_work(0, tensors * stage.y.nbytes());
}

/// `before`: the stage whose y is x, normalised on the way. `moments`: of what is returned.
Stage run_forward(const ConvStage& stage, const Tensor& x, const Stage* before, Moments& moments) {
  const Span span = Span::of_module(stage.module);
  const BatchNorm norm = norm_of(stage);
  const ConvProblem p = problem_of(stage, x.shape(), x.dtype());
  const double count = static_cast<double>(p.n * p.oh * p.ow);
  const Tensor y = empty(output_shape(p), p.dtype, p.format);
  double *mean = moments.mean.out<double>(), *var = moments.var.out<double>();
  convolve(p, ConvPass::forward, x, stage.weight, y,
           {.kind = Epilogue::Kind::moments, .first = mean, .second = var},
           before ? before->map() : ChannelMap{});
  for (int64_t c = 0; c < p.oc; ++c) var[c] /= count;
  return {p,
          SavedTensor(kOp, stage.weight),
          SavedTensor(kOp, norm.weight),
          y,
          ChannelNorm(norm, moments, p.dtype),
          stage.activation,
          current_module()};
}

/// `dw`: where the weight's gradient goes if the same pass computes it, of the epilogue's x; or
/// null.
void input_gradient(const Stage& stage, const Tensor& dy, const Tensor& dx,
                    const Epilogue& epilogue, Tensor* dw = nullptr) {
  const Span span = Span::of_backward("conv2d", stage.module);
  if (dw) *dw = convolve_back(stage.problem, dy, stage.weight.get(), dx, epilogue);
  else convolve(stage.problem, ConvPass::dgrad, dy, stage.weight.get(), dx, epilogue);
}

/// Where the inputs of the node, and their gradients, are: x, then those of each stage.
constexpr size_t kX = 0;
struct StagePlaces {
  explicit StagePlaces(size_t stage) : weight(kX + 1 + 3 * stage) {}
  size_t weight, bn_weight = weight + 1, bn_bias = bn_weight + 1;
};

/// What a chain keeps, and its passes beyond those of single stages.
struct Trained {
  using Shortcut = ConvChain::Shortcut;

  SavedTensor x;
  Shortcut shortcut;
  std::vector<Stage> stages = {};  // of the branch, then the projection if there is one
  Tensor mask = {};  // of the join, as its kernels lay it out; none where they need none

  size_t depth() const { return stages.size() - (shortcut == Shortcut::projection); }
  const Stage& last() const { return stages[depth() - 1]; }
  const Stage& projection() const { return stages[depth()]; }
  const Stage* before(size_t i) const { return i == 0 ? nullptr : &stages[i - 1]; }

  /// x if the join reads it: an x that is recomputed is not made before it is needed.
  Tensor join_input() const { return shortcut == Shortcut::identity ? x.get() : Tensor(); }

  /// Of a Recompute of the output.
  int join_depth() const { return 1 + (shortcut == Shortcut::identity ? x.depth() : 0); }

  void make_mask() {
    if (!only_clamps(last().activation) || last().activation == Activation::none) return;
    const BatchNormSize size = last().size();
    mask = empty({size.images * size.pixels,
                  mask_words(size.channels) * static_cast<int64_t>(sizeof(MaskWord))},
                 DType::u8);
  }
  MaskWord* mask_bits() const {
    return mask.defined() ? static_cast<MaskWord*>(mask.out_ptr()) : nullptr;
  }

  /// The output and, where `bits` has a place for it, its mask. `input`: x
  Tensor join(const Tensor& input, MaskWord* bits = nullptr) const {
    VerboseOp line("conv_chain_join_fwd");
    const JoinKernel& kernel = select_join_kernel(last().problem.dtype);
    report(line, kernel.name, last(), shortcut == Shortcut::none ? 2 : 3);
    Tensor result = empty_like(last().y);
    JoinSide other;
    if (shortcut == Shortcut::projection) other = projection().side();
    if (shortcut == Shortcut::identity) other.v = input.data_ptr();
    join_forward(kernel, last().size(), last().side(), other, result.out_ptr(), bits);
    return result;
  }

  /// Of stage i, from Σdz and Σdz·(y - center). Those of its batch norm's parameters go to their
  /// places.
  ChannelGradients channel_gradients(size_t i, const double* dz, const double* dzy,
                                     Tensors& gradients) const {
    ChannelGradients g(stages[i].norm, stages[i].bn_weight.get(), dz, dzy, stages[i].count());
    gradients[StagePlaces(i).bn_weight] = g.weight;
    gradients[StagePlaces(i).bn_bias] = g.bias;
    return g;
  }

  /// The gradients of the last y and, where wanted, of what the shortcut brought. One of them takes
  /// the place of dout if nobody else sees it.
  std::pair<Tensor, Tensor> part(const Tensor& dout_any, bool wanted, Tensors& gradients) const {
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
    // The exponential of a smooth activation, which no shortcut meets, is computed once: dz takes
    // the place of dout.
    const bool smooth = !only_clamps(last().activation);
    if (smooth) branch.dv = dy.out_ptr();
    join_reduce(kernel, last().size(), branch, side, dout.data_ptr(), mask_bits(), dz, dzy, dzs);

    const ChannelGradients g = channel_gradients(depth() - 1, dz, dzy, gradients);
    if (smooth) {
      branch = last().side(g, dy);
      branch.map.activation = Activation::none;
      join_apply(kernel, last().size(), branch, {}, dy.data_ptr(), nullptr);
    } else if (dzs) {
      const ChannelGradients p = channel_gradients(depth(), dz, dzs, gradients);
      side = projection().side(p, dshortcut);
      join_apply(kernel, last().size(), last().side(g, dy), side, dout.data_ptr(), mask_bits());
    } else {
      side.dv = wanted ? dshortcut.out_ptr() : nullptr;
      join_apply(kernel, last().size(), last().side(g, dy), side, dout.data_ptr(), mask_bits());
    }
    return {dy, dshortcut};
  }

  /// From the gradient of the y of stage i to that of the stage before it. `dw`: as
  /// input_gradient's.
  Tensor pass_back(size_t i, const Tensor& dy, Tensors& gradients, Tensor* dw) const {
    const Stage& stage = stages[i - 1];
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

  /// Of x, and of weight, bn_weight and bn_bias of each stage.
  Tensors backward(const Tensor& dout, Needs needs) {
    Tensors gradients(StagePlaces(stages.size()).weight);
    with_tasks([&](Tasks& beside) { pass_all_back(dout, needs, gradients, beside); });
    return gradients;
  }

  /// Those of weights are computed beside the others, which wait for nothing but each other.
  void pass_all_back(const Tensor& dout, Needs needs, Tensors& gradients, Tasks& beside) {
    // Freed as soon as the tasks are through with it, too, unless another pass comes: the largest
    // tensors are still to be made.
    const auto done_with = [&](auto&... saved) {
      if (!needs.again()) ((saved = {}), ...);
    };
    const auto needs_weight = [&](size_t i) { return needs[StagePlaces(i).weight]; };
    const auto differentiate_weight = [&](size_t i, Tensor input, const Stage* before, Tensor dy) {
      if (!needs_weight(i)) return;
      const Stage& stage = stages[i];
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
};

/// The output of a chain after its forward pass, with the history that `inputs` ask for.
Tensor record_join(const std::shared_ptr<Trained>& trained, const Tensor& x,
                   const Tensors& inputs) {
  trained->make_mask();
  const Tensor out = trained->join(x, trained->mask_bits());
  // The output, which the next chain saves, is recomputed in backward by a pass over what this one
  // keeps anyway: little time for much of a step's memory, unless an exponential is in it.
  std::shared_ptr<Recompute> recompute;
  const bool cheap = only_clamps(trained->last().activation);
  if (const int depth = trained->join_depth(); cheap && depth <= kMaxDepth)
    recompute = Recompute::of(
        out, [trained] { return trained->join(trained->join_input()); }, depth);
  return record(
      kOp, out, inputs,
      [trained](const Tensor& dout, Needs needs) { return trained->backward(dout, needs); },
      GradDType::of_output, std::move(recompute));
}

}  // namespace

Tensor detail::conv_chain_train(const Tensor& x_any, const ConvChain& chain, bool recorded) {
  const Tensor x = contiguous(x_any, MemoryFormat::channels_last);
  const auto trained = std::make_shared<Trained>(SavedTensor(kOp, x), chain.shortcut);
  std::vector<Stage>& stages = trained->stages;
  std::vector<const ConvStage*> all;  // in the order of `stages`
  for (const ConvStage& stage : chain.stages) all.push_back(&stage);
  const bool projected = chain.shortcut == ConvChain::Shortcut::projection;
  if (projected) all.push_back(&chain.projection);
  std::vector<Moments> moments;
  Tensors inputs{x};
  for (const ConvStage* stage : all) {
    moments.emplace_back(stage->weight.size(0));
    inputs.insert(inputs.end(), {stage->weight, stage->bn_weight, stage->bn_bias});
  }

  std::optional<Stage> projection;
  with_tasks([&](Tasks& beside) {
    if (projected)
      beside.run([&, caller = thread_mode()] {
        const ThreadModeGuard mode(caller);  // packed weights are kept or not
        projection.emplace(run_forward(chain.projection, x, nullptr, moments.back()));
      });
    for (size_t i = 0; i < chain.stages.size(); ++i) {
      const Stage* before = stages.empty() ? nullptr : &stages.back();
      stages.push_back(run_forward(*all[i], before ? before->y : x, before, moments[i]));
    }
  });
  if (projected) stages.push_back(*std::move(projection));

  Tensor y = recorded ? record_join(trained, x, inputs) : trained->join(x);
  y = contiguous(y, x_any.format());
  for (size_t i = 0; i < all.size(); ++i)
    update_running(norm_of(*all[i]), moments[i], stages[i].count());
  return y;
}

}  // namespace quern
