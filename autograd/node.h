// The graph: one node an op, made by record() under the op's forward pass.
#pragma once
#include <concepts>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "quern/autograd/delete_in_turn.h"
#include "quern/autograd/grad_mode.h"
#include "quern/tensor/span.h"
#include "quern/tensor/tensor.h"

namespace quern {

class Node;

/// What autograd keeps with a tensor: whether it is a leaf to accumulate into, or which node made
/// it. The graph links these, never tensors, so it keeps alive only the data that backward passes
/// saved.
struct Variable : AutogradMeta, std::enable_shared_from_this<Variable> {
  /// Of a tensor that has none yet.
  explicit Variable(const Tensor& t) : shape(t.shape()), dtype(t.dtype()), format(t.format()) {}
  std::string describe() const override;

  Shape shape;                 ///< of the tensor, and so of its gradient
  DType dtype;                 ///< of the tensor
  MemoryFormat format;         ///< of the tensor, which its gradient takes, too
  bool requires_grad = false;  ///< of a leaf
  std::shared_ptr<Node> node;  ///< null for a leaf
  Tensor grad;                 ///< leaves only
  std::vector<std::function<Tensor(const Tensor&)>> hooks;  ///< Tensor::register_hook()

  Tensor lowered;                ///< autocast's bf16 copy of a leaf
  uint64_t lowered_version = 0;  ///< which version of the leaf's storage that is a copy of
};

/// The Variable of a tensor; null where there is none (undefined, or never touched by autograd).
std::shared_ptr<Variable> variable(const Tensor& t);

using Edges = std::vector<std::shared_ptr<Variable>>;  ///< of a node: one an input

/// What a backward pass asks of a node.
class Needs {
 public:
  /// Those of a node with these inputs.
  Needs(const Edges& inputs, bool again) : inputs_(inputs), again_(again) {}
  /// Does this input want a gradient? The others may be left undefined.
  bool operator[](size_t input) const { return inputs_[input] != nullptr; }
  /// Will another pass come? If not, what was saved may be freed, or written over, once it is used.
  bool again() const { return again_; }

 private:
  const Edges& inputs_;
  bool again_;
};

/// How to make the output of an op again, the same bits, from what its node keeps for backward
/// anyway. Who saves the output keeps this in its place, and the memory is free until then.
/// `depth`: the tensors that come to be in making it, itself and those that others make for
/// it.
class Recompute : public InTurn<Recompute> {
 public:
  /// Of the fresh output `y`, which `make` makes again.
  static std::shared_ptr<Recompute> of(const Tensor& y, std::function<Tensor()> make,
                                       int depth = 1) {
    return {new Recompute(y, std::move(make), depth), DeleteInTurn<Recompute>()};
  }
  int depth() const { return depth_; }  ///< how many tensors come to be in making it
  /// Is this it, unchanged?
  bool makes(const Tensor& t) const;
  /// What it makes, without history: what was made before if someone still holds that.
  Tensor get();

 private:
  Recompute(const Tensor& y, std::function<Tensor()> make, int depth)
      : make_(std::move(make)), depth_(depth) {
    remember(y);
  }
  void remember(const Tensor& t);

  std::function<Tensor()> make_;
  int depth_;
  std::weak_ptr<Storage> last_;
  uint64_t version_ = 0;
  Shape shape_;
  Strides strides_;
  int64_t offset_ = 0;
  DType dtype_ = DType::f32;
};

/// A tensor kept for backward, by its Recompute if it has one, else as it is: it shares the
/// storage, and get() fails if that was changed in place since.
class SavedTensor {
 public:
  SavedTensor() = default;
  SavedTensor(std::string_view op, const Tensor& t);  ///< `op`: a literal
  /// The tensor. Error of the op: it was changed in place since.
  const Tensor& get() const;
  /// Was one saved?
  bool defined() const { return tensor_.defined() || recompute_; }
  /// Of its Recompute; 0: it is kept as it is.
  int depth() const { return recompute_ ? recompute_->depth() : 0; }

 private:
  std::string_view op_;
  std::shared_ptr<Recompute> recompute_;
  // Without history, so that a node may save its own output. What a Recompute made is kept from the
  // first use on.
  mutable Tensor tensor_;
  mutable uint64_t version_ = 0;
};

/// In which dtype a backward pass takes its dy. Gradients may be wider than what they are of.
enum class GradDType {
  of_output,  ///< converted to the output's
  any,        ///< as it comes: casts and views pass it on and lose no precision
};

/// One recorded op with one output. `inputs` has an entry an argument; null where it needs no
/// gradient.
class Node : public InTurn<Node> {
 public:
  /// As record() makes it. `op`: a literal.
  Node(std::string_view op, Edges inputs, GradDType grad_dtype)
      : op(op),
        module(detail::current_module()),
        grad_dtype(grad_dtype),
        inputs(std::move(inputs)) {}
  virtual ~Node() = default;
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;
  /// Gradients of the inputs, in their order, given the output's. Called without recording.
  /// `again`: what was saved is wanted once more, as it is.
  virtual Tensors backward(const Tensor& dy, bool again) = 0;
  /// Frees what was saved. A second backward() through this node is then an error.
  virtual void release() = 0;
  virtual bool released() const = 0;  ///< was it?

  const std::string_view op;             ///< whose it is
  const std::string_view module;         ///< in which it was called, where spans are recorded
  const GradDType grad_dtype;            ///< of the dy that backward() takes
  Edges inputs;                          ///< an entry an argument; null where it needs no gradient
  std::shared_ptr<Recompute> recompute;  ///< of the output; null: it has none
};

/// A node whose backward is the closure F: Tensors(const Tensor& dy, Needs).
template <class F>
class ClosureNode final : public Node {
 public:
  /// `f`: the closure.
  ClosureNode(std::string_view op, Edges inputs, GradDType grad_dtype, F f)
      : Node(op, std::move(inputs), grad_dtype), f_(std::move(f)) {}
  Tensors backward(const Tensor& dy, bool again) override {
    return (*f_)(dy, Needs(inputs, again));
  }
  void release() override {
    f_.reset();
    recompute.reset();
  }
  bool released() const override { return !f_; }

 private:
  std::optional<F> f_;
};

namespace detail {
/// Null entries where an input needs no gradient; empty when none does or recording is off.
Edges edges(std::span<const Tensor> inputs);
void set_history(const Tensor& y, std::shared_ptr<Node> node);
}  // namespace detail

/// Gives `y`, the fresh output of `op` on `inputs`, its history, and returns it. `backward` is the
/// closure Tensors(const Tensor& dy, Needs needs): dy has y's shape and dtype (any strides), and
/// the result holds one tensor an input, of its shape, undefined where !needs[i]. A floating
/// gradient may have another dtype than its input (f32 for a bf16 weight keeps its precision). `op`
/// must be a literal. A `recompute` is one of y. Errors of `op`: a y that is undefined,
/// not floating or has history already; in backward(), gradients of another number or shape,
/// or not floating.
///
///   return record("exp", y, {x}, [y = SavedTensor("exp", y)](const Tensor& dy, Needs) -> Tensors {
///     return {mul(dy, y.get())};
///   });
template <std::invocable<const Tensor&, Needs> F>
Tensor record(std::string_view op, Tensor y, std::span<const Tensor> inputs, F backward,
              GradDType grad_dtype = GradDType::of_output,
              std::shared_ptr<Recompute> recompute = nullptr) {
  Edges edges = detail::edges(inputs);
  if (edges.empty()) return y;
  std::shared_ptr<Node> node(
      new ClosureNode<F>(op, std::move(edges), grad_dtype, std::move(backward)),
      DeleteInTurn<Node>());
  node->recompute = std::move(recompute);
  detail::set_history(y, std::move(node));
  return y;
}
template <std::invocable<const Tensor&, Needs> F>
Tensor record(std::string_view op, Tensor y, std::initializer_list<Tensor> inputs, F backward,
              GradDType grad_dtype = GradDType::of_output,
              std::shared_ptr<Recompute> recompute = nullptr) {
  return record(op, std::move(y), std::span(inputs.begin(), inputs.size()), std::move(backward),
                grad_dtype, std::move(recompute));
}

}  // namespace quern
