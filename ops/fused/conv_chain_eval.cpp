// conv_chain in evaluation: a batch norm by running statistics is a factor and a summand a channel.
// They stay in f32 and are applied to the sums of the convolution before they are rounded, so that
// the packed weights are those of conv2d, and a changed statistic costs no packing. A batch goes through
// the stages a few images at a time, whose activations stay in the cache between two of them.
#include <algorithm>
#include <span>
#include <vector>

#include "quern/ops/fused/conv_stage.h"
#include "quern/tensor/cpu_features.h"
#include "quern/tensor/raw.h"

namespace quern {
namespace {

using namespace kernels;
using namespace detail;
using enum ConvChain::Shortcut;

ConvProblem problem(const ConvStage& stage, const Tensor& x) {
  return problem_of(stage, x.shape(), x.dtype());
}

/// Stages and what does not depend on the images.
struct Evaluation {
  std::vector<const ConvStage*> stages;  // of the branch, then the projection if there is one
  std::vector<EvaluationNorm> norms;

  Evaluation(const ConvChain& chain, DType dtype) {
    for (const ConvStage& stage : chain.stages) stages.push_back(&stage);
    if (chain.shortcut == projection) stages.push_back(&chain.projection);
    for (const ConvStage* stage : stages) norms.emplace_back(norm_of(*stage), dtype);
  }

  Tensor output(size_t i, const Tensor& x) const {
    const ConvProblem p = problem(*stages[i], x);
    return empty(output_shape(p), p.dtype, p.format);
  }

  /// y = stage i of x, and what else `finish` asks for.
  void run(size_t i, const Tensor& x, const Tensor& y, ForwardFusion finish) const {
    const ConvPlan plan = plan_conv(problem(*stages[i], x), ConvPass::forward);
    finish.scale = norms[i].scale.raw(), finish.shift = norms[i].shift.raw();
    conv_forward(plan, x.raw(), PackedWeight(plan, stages[i]->weight).data(), y.raw(), finish);
  }

  void run(const ConvChain& chain, const Tensor& x, const Tensor& out) const {
    const size_t last = chain.stages.size() - 1;
    Tensor y = x;
    for (size_t i = 0; i < last; ++i) {
      const Tensor next = output(i, y);
      run(i, y, next, {.relu = true});
      y = next;
    }
    // The projection's place is that of the sum: the last stage adds to what it finds there.
    if (chain.shortcut == projection) run(last + 1, x, out, {});
    const void* residual = chain.shortcut == none         ? nullptr
                           : chain.shortcut == projection ? out.raw()
                                                          : x.raw();
    run(last, y, out, {.residual = residual, .relu = true});
  }
};

/// How many images go through a chain together: as many as leave all that its stages read and write in
/// an eighth of the last cache, which other cores use too. Images do not meet in evaluation: only where
/// their number chooses another kernel (conv_winograd wants 4 tiles in all) do the last bits depend on it.
int64_t images_at_once(std::span<const Shape> activations, DType dtype) {
  int64_t bytes = 0;  // of an image
  for (const Shape& s : activations) bytes += s[1] * s[2] * s[3] * itemsize(dtype);
  const int64_t images = activations[0][0];
  const int64_t fit = std::max<int64_t>(1, cache_sizes().l3 / 8 / bytes);
  const int64_t parts = (images + fit - 1) / fit;
  return (images + parts - 1) / parts;
}

}  // namespace

Tensor detail::conv_chain_eval(const Tensor& x_any, const ConvChain& chain) {
  const Tensor x = raw::contiguous(x_any, MemoryFormat::channels_last);
  const Evaluation evaluation(chain, x.dtype());
  std::vector<Shape> shapes{x.shape()};
  for (const ConvStage& stage : chain.stages)
    shapes.push_back(output_shape(problem_of(stage, shapes.back(), x.dtype())));
  const Tensor out = empty(shapes.back(), x.dtype(), MemoryFormat::channels_last);
  const int64_t images = x.size(0), step = images_at_once(shapes, x.dtype());
  for (int64_t first = 0; first < images; first += step) {
    const int64_t end = std::min(first + step, images);
    evaluation.run(chain, raw::slice(x, 0, first, end), raw::slice(out, 0, first, end));
  }
  return raw::contiguous(out, x_any.format());
}

}  // namespace quern
