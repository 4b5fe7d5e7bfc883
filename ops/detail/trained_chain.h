// A chain after its forward pass in training: what it keeps, and the way back.
#pragma once
#include <optional>
#include <utility>
#include <vector>

#include "quern/autograd/node.h"
#include "quern/ops/detail/conv_stage.h"
#include "quern/ops/kernels/norm/join.h"
#include "quern/tensor/tasks.h"

namespace quern::detail {

/// A stage after its forward pass.
struct TrainedStage {
  kernels::ConvProblem problem;
  SavedTensor weight, bn_weight;
  Tensor y;  ///< of the convolution
  ChannelNorm norm;
  Activation activation;
  std::string_view module;  ///< of the convolution, by its dotted name

  kernels::BatchNormSize size() const { return {problem.n, problem.oh * problem.ow, problem.oc}; }
  double count() const { return static_cast<double>(problem.n * problem.oh * problem.ow); }
  /// Reads y as what batch norm and activation make of it.
  kernels::ChannelMap map() const {
    return {norm.center.data_ptr(), norm.scale.data_ptr(), norm.shift.data_ptr(), activation};
  }
  kernels::JoinSide side() const { return {.v = y.data_ptr(), .map = map()}; }
  kernels::JoinSide side(const ChannelGradients& g, const Tensor& dy) const {
    kernels::JoinSide s = side();
    s.a = g.a.data_ptr(), s.b = g.b.data_ptr(), s.c = g.c.data_ptr(),
    s.dv = dy.defined() ? dy.out_ptr() : nullptr;
    return s;
  }
};

/// Where the inputs of the node, and their gradients, are: x, then those of each stage.
inline constexpr size_t kX = 0;
struct StagePlaces {
  explicit StagePlaces(size_t stage) : weight(kX + 1 + 3 * stage) {}
  size_t weight, bn_weight = weight + 1, bn_bias = bn_weight + 1;
};

/// What a chain keeps, and its passes beyond those of single stages.
struct TrainedChain {
  using Shortcut = ConvChain::Shortcut;

  SavedTensor x;
  Shortcut shortcut;
  std::vector<TrainedStage> stages = {};  // of the branch, then the projection if there is one
  Tensor mask = {};  // of the join, as its kernels lay it out; none where they need none

  /// Of an output that is multiplied by factors of its own means: both [N, C, 1, 1].
  struct Gate {
    SavedTensor factors;
    Tensor dmeans = {};  // what backward() adds to the gradient that comes through the factors
  };
  std::optional<Gate> gate = {};

  size_t depth() const { return stages.size() - (shortcut == Shortcut::projection); }
  const TrainedStage& last() const { return stages[depth() - 1]; }
  const TrainedStage& projection() const { return stages[depth()]; }
  const TrainedStage* before(size_t i) const { return i == 0 ? nullptr : &stages[i - 1]; }

  /// x if the join reads it: an x that is recomputed is not made before it is needed.
  Tensor join_input() const { return shortcut == Shortcut::identity ? x.get() : Tensor(); }

  /// Of a Recompute of the output.
  int join_depth() const { return 1 + (shortcut == Shortcut::identity ? x.depth() : 0); }

  /// Of the join, if its activation clamps.
  void make_mask();
  kernels::MaskWord* mask_bits() const {
    return mask.defined() ? static_cast<kernels::MaskWord*>(mask.out_ptr()) : nullptr;
  }

  /// The output and, where `bits` and `sums` have a place for them, its mask, and its sums over the
  /// pixels where no shortcut is. `input`: x
  Tensor join(const Tensor& input, kernels::MaskWord* bits = nullptr, double* sums = nullptr) const;
  /// Of x, and of weight, bn_weight and bn_bias of each stage. `dout`: of the output, or of its
  /// product with the gate's factors
  Tensors backward(const Tensor& dout, Needs needs);

 private:
  /// Of stage i, from Σdz and Σdz·(y - center). Those of its batch norm's parameters go to their
  /// places.
  ChannelGradients channel_gradients(size_t i, const double* dz, const double* dzy,
                                     Tensors& gradients) const;
  /// The gradients of the last y and, where wanted, of what the shortcut brought. One of them takes
  /// the place of dout if nobody else sees it.
  std::pair<Tensor, Tensor> part(const Tensor& dout_any, bool wanted, Tensors& gradients) const;
  /// From the gradient of the y of stage i to that of the stage before it. `dw`: as
  /// input_gradient's.
  Tensor pass_back(size_t i, const Tensor& dy, Tensors& gradients, Tensor* dw) const;
  /// Those of weights are computed beside the others, which wait for nothing but each other.
  void pass_all_back(const Tensor& dout, Needs needs, Tensors& gradients, Tasks& beside);
};

}  // namespace quern::detail
