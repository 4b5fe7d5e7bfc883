// The graph: one node an op, made by record() under the op's forward pass.
#pragma once
#include <bitset>
#include <concepts>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "quern/autograd/grad_mode.h"
#include "quern/tensor/tensor.h"

namespace quern {

class Node;

/// What autograd keeps with a tensor: whether it is a leaf to accumulate into, or which node made it.
/// The graph links these, never tensors, so it keeps alive only the data that backward passes saved.
struct Variable : AutogradMeta {
  std::string op;  ///< for messages: what made it, or "leaf"
  Shape shape;
  DType dtype;
  MemoryFormat format;
  bool requires_grad = false;
  std::shared_ptr<Node> node;  ///< null for a leaf
  Tensor grad;                 ///< leaves only
  std::vector<std::function<Tensor(const Tensor&)>> hooks;
};

/// Which inputs of a node want a gradient; the others may be left undefined.
class Needs {
 public:
  void set(size_t input) { bits_.set(input); }
  bool operator[](size_t input) const { return bits_[input]; }

 private:
  std::bitset<64> bits_;  // cat and stack of more inputs than that: all are needed (see record)
};

/// A tensor kept for backward. It shares the storage; get() fails if that was changed in place since.
class SavedTensor {
 public:
  SavedTensor() = default;
  SavedTensor(std::string_view op, const Tensor& t);
  const Tensor& get() const;
  bool defined() const { return tensor_.defined(); }

 private:
  std::string_view op_;  // a literal
  Tensor tensor_;        // without history, so that a node may save its own output
  uint64_t version_ = 0;
};

/// One recorded op with one output. `inputs` has an entry an argument; null where it needs no gradient.
class Node {
 public:
  Node(std::string_view op, std::vector<std::shared_ptr<Variable>> inputs)
      : op(op), inputs(std::move(inputs)) {}
  virtual ~Node();  // iterative, so that a graph of any depth can be freed
  /// Gradients of the inputs, in their order, given the output's. Called without recording.
  virtual Tensors backward(const Tensor& dy, Needs needs) = 0;
  /// Frees what was saved. A second backward() through this node is then an error.
  virtual void release() = 0;
  virtual bool released() const = 0;

  const std::string_view op;
  std::vector<std::shared_ptr<Variable>> inputs;
};

/// A node whose backward is the closure F: Tensors(const Tensor& dy, Needs).
template <class F>
class ClosureNode final : public Node {
 public:
  ClosureNode(std::string_view op, std::vector<std::shared_ptr<Variable>> inputs, F f)
      : Node(op, std::move(inputs)), f_(std::move(f)) {}
  Tensors backward(const Tensor& dy, Needs needs) override { return (*f_)(dy, needs); }
  void release() override { f_.reset(); }
  bool released() const override { return !f_; }

 private:
  std::optional<F> f_;
};

namespace detail {
/// Null entries where an input needs no gradient; empty when none does or recording is off.
std::vector<std::shared_ptr<Variable>> edges(const Tensors& inputs);
void set_history(const Tensor& y, std::shared_ptr<Node> node);
}  // namespace detail

/// Gives `y`, the fresh output of `op` on `inputs`, its history, and returns it. `backward` is the
/// closure Tensors(const Tensor& dy, Needs needs): dy has y's shape (any strides), and the result holds
/// one tensor an input, of its shape, undefined where !needs[i]. A floating gradient may have another
/// dtype than its input (f32 for a bf16 weight keeps its precision). `op` must be a literal.
///
///   return record("exp", y, {x}, [y = SavedTensor("exp", y)](const Tensor& dy, Needs) -> Tensors {
///     return {mul(dy, y.get())};
///   });
template <std::invocable<const Tensor&, Needs> F>
Tensor record(std::string_view op, Tensor y, const Tensors& inputs, F backward) {
  auto edges = detail::edges(inputs);
  if (!edges.empty())
    detail::set_history(y, std::make_shared<ClosureNode<F>>(op, std::move(edges), std::move(backward)));
  return y;
}

}  // namespace quern
