#include "quern/ops/fused/conv_chain.h"

#include "quern/ops/activation.h"
#include "quern/ops/batch_norm.h"
#include "quern/ops/binary.h"
#include "quern/ops/conv2d.h"

namespace quern {
namespace {

Tensor composed(const Tensor& x, const ConvStage& s, bool training) {
  return batch_norm(conv2d(x, s.weight, {}, s.stride, s.padding), s.running_mean, s.running_var,
                    s.bn_weight, s.bn_bias, training, s.momentum, s.eps);
}

}  // namespace

Tensor detail::conv_chain_composed(const Tensor& x, const ConvChain& chain, bool training) {
  using enum ConvChain::Shortcut;
  Tensor y = composed(x, chain.stages[0], training);
  for (const ConvStage& stage : chain.stages.subspan(1)) y = composed(relu(y), stage, training);
  if (chain.shortcut == identity) y = y + x;
  if (chain.shortcut == projection) y = y + composed(x, chain.projection, training);
  return relu(y);
}

Tensor conv_chain(const Tensor& x, const ConvChain& chain, bool training) {
  return detail::conv_chain_composed(x, chain, training);
}

}  // namespace quern
