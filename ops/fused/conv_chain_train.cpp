// conv_chain in training: the forward pass of each stage leaves what its convolution summed up and
// a batch norm a channel, and the backward pass goes from there. Nothing that is normalised is
// stored.
#include <functional>
#include <optional>

#include "quern/autograd/grad_mode.h"
#include "quern/ops/convert.h"
#include "quern/ops/detail/elementwise.h"
#include "quern/ops/detail/sum.h"
#include "quern/ops/detail/trained_chain.h"
#include "quern/tensor/raw.h"

namespace quern {
namespace {

using namespace kernels;
using namespace detail;
constexpr std::string_view kOp = "conv_chain";

/// Outputs that backward recomputes one from the other are live at once: at most this many. The
/// next in a row of identity shortcuts is kept, one tensor instead of all of them at the peak of
/// memory.
constexpr int kMaxDepth = 4;

/// `before`: the stage whose y is x, normalised on the way. `moments`: of what is returned.
TrainedStage run_forward(const ConvStage& stage, const Tensor& x, const TrainedStage* before,
                         Moments& moments) {
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

/// The output of a chain after its forward pass, with the history that `inputs` ask for.
Tensor record_join(const std::shared_ptr<TrainedChain>& trained, const Tensor& x,
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

/// The output times its gate's factors, with the history that `inputs` and the factors ask for. Two
/// nodes: that of the product leaves its gradient for that of the means, which comes later and
/// passes both on at once.
Tensor record_gated(const std::shared_ptr<TrainedChain>& trained, const ConvStage& stage,
                    const Tensors& inputs) {
  const BatchNormSize size = trained->last().size();
  const Tensor sums = empty({size.images, size.channels, 1, 1}, DType::f64);
  const Tensor out = trained->join({}, nullptr, sums.out<double>());
  const Tensor of_pixels = raw::binary(kOp, Binary::div, sums, static_cast<double>(size.pixels));
  const auto dproduct = std::make_shared<Tensor>();
  const Tensor means =
      record(kOp, raw::to(of_pixels, out.dtype()), inputs, [=](const Tensor& dmeans, Needs needs) {
        trained->gate->dmeans = dmeans;
        Tensor dout = std::exchange(*dproduct, {});
        // None: of what the gate was given, and not of the output.
        if (!dout.defined()) dout = zeros_like(trained->last().y);
        return trained->backward(dout, needs);
      });
  std::function<Tensor()> saved = [out] { return out; };
  if (means.requires_grad() && only_clamps(trained->last().activation))  // as in record_join()
    saved = [trained] { return trained->join({}); };
  const Tensor factors = gate_factors(stage, means);
  trained->gate.emplace(SavedTensor(kOp, factors));
  return record(kOp, raw::binary(kOp, Binary::mul, out, factors), {means, factors},
                [=, shape = factors.shape()](const Tensor& dy, Needs needs) -> Tensors {
                  const Tensor dout = raw::contiguous(dy, MemoryFormat::channels_last);
                  Tensor dmeans, dfactors;
                  if (needs[0]) *dproduct = dout, dmeans = zeros(shape, dy.dtype());
                  if (needs[1]) dfactors = raw::sum_to(kOp, Binary::mul, dout, saved(), shape);
                  return {dmeans, dfactors};
                });
}

}  // namespace

Tensor detail::conv_chain_train(const Tensor& x_any, const ConvChain& chain, bool recorded) {
  const Tensor x = contiguous(x_any, MemoryFormat::channels_last);
  const auto trained = std::make_shared<TrainedChain>(SavedTensor(kOp, x), chain.shortcut);
  std::vector<TrainedStage>& stages = trained->stages;
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

  std::optional<TrainedStage> projection;
  with_tasks([&](Tasks& beside) {
    if (projected)
      beside.run([&, caller = thread_mode()] {
        const ThreadModeGuard mode(caller);  // packed weights are kept or not
        projection.emplace(run_forward(chain.projection, x, nullptr, moments.back()));
      });
    for (size_t i = 0; i < chain.stages.size(); ++i) {
      const TrainedStage* before = stages.empty() ? nullptr : &stages.back();
      stages.push_back(run_forward(*all[i], before ? before->y : x, before, moments[i]));
    }
  });
  if (projected) stages.push_back(*std::move(projection));

  const ConvStage& last = chain.stages.back();
  Tensor y = last.gate  ? record_gated(trained, last, inputs)
             : recorded ? record_join(trained, x, inputs)
                        : trained->join(x);
  y = contiguous(y, x_any.format());
  for (size_t i = 0; i < all.size(); ++i)
    update_running(norm_of(*all[i]), moments[i], stages[i].count());
  return y;
}

}  // namespace quern
