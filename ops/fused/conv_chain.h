// conv_chain: conv2d → batch_norm → activation, several times over, and a shortcut around them:
// what ResNets and MobileNets are made of, as one op. Between two convolutions only what the first
// one summed up reaches memory: its statistics are taken while it is stored, and it is normalised
// while the next one reads it. After Jung et al., "Restructuring batch normalization to accelerate
// CNN training", MLSys'19. The output, which the next op would keep for its gradient, is made again
// in backward.
#pragma once
#include <functional>
#include <span>
#include <string_view>

#include "quern/ops/activation.h"
#include "quern/tensor/pair.h"
#include "quern/tensor/tensor.h"

namespace quern {

/// batch_norm(conv2d(x, weight, {}, stride, padding, 1, groups), running_mean, running_var,
/// bn_weight, bn_bias, training, momentum, eps), the activation that follows it, and a gate.
struct ConvStage {
  Tensor weight;                                         ///< [O, C/groups, KH, KW]
  Pair stride = 1, padding = 0;                          ///< conv2d's
  Tensor running_mean, running_var, bn_weight, bn_bias;  ///< [O], or undefined as batch_norm allows
  double momentum = 0.1, eps = 1e-5;                     ///< batch_norm's
  int64_t groups = 1;                                    ///< conv2d's
  Activation activation = Activation::relu;              ///< what follows
  /// What the activation's y is multiplied by: of its means over the pixels,
  /// adaptive_avg_pool2d(y, 1), to factors of the same shape and dtype. None: nothing.
  std::function<Tensor(const Tensor&)> gate = {};
  std::string_view module = {};  ///< by which spans know it, within the module that calls; "": none
};

/// The branch: `stages` one after the other, at least one. The last one's activation is that of the
/// sum with the shortcut; a projection's is not asked for, nor its gate.
struct ConvChain {
  std::span<const ConvStage> stages;  ///< in order
  /// What is added to the branch: nothing, x, or x through a convolution and its batch norm.
  enum class Shortcut { none, identity, projection };
  Shortcut shortcut = Shortcut::none;  ///< which of these
  ConvStage projection = {};           ///< with Shortcut::projection only
};

/// activation(branch(x)), or of branch(x) + x, or of branch(x) + projection(x).
///   x  [N, C, H, W], f32, bf16 or f64; the output has its format and dtype
/// Autocast takes an f32 x as bf16, for the shortcut too, and f32 weights.
/// The same as the composition of conv2d, batch_norm, activations and add in arguments, gradients
/// and what happens to the running statistics; it rounds bf16 less often. Computed in
/// channels_last.
/// Errors: as those of conv2d and batch_norm; a shortcut of another shape than the branch, or with
/// a gate of the last stage; factors of another shape or dtype.
Tensor conv_chain(const Tensor& x, const ConvChain& chain, bool training);

}  // namespace quern
