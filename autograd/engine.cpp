// The engine: Tensor's autograd members, and backward(), Kahn's topological order over the graph.
// Each variable is visited once, when all of its consumers have added to its gradient. The order
// follows from the structure of the graph alone, so sums come out the same in every run.
#include <unordered_map>

#include "quern/autograd/accumulate.h"
#include "quern/autograd/node.h"
#include "quern/tensor/raw.h"

namespace quern {
namespace {

Variable* meta(const Tensor& t) { return static_cast<Variable*>(t.autograd()); }

Variable& meta_or_new(const Tensor& t) {
  if (meta(t) == nullptr) t.set_autograd(std::make_shared<Variable>(t));
  return *meta(t);
}

/// Backward passes record nothing and compute in the dtypes they are given.
class BackwardMode {
 public:
  BackwardMode() : before_(detail::thread_mode()) {
    detail::thread_mode() = {.grad = false, .autocast = false, .backward = true};
  }
  ~BackwardMode() { detail::thread_mode() = before_; }
  BackwardMode(const BackwardMode&) = delete;
  BackwardMode& operator=(const BackwardMode&) = delete;

 private:
  detail::ThreadMode before_;
};

/// What is known of a variable's gradient while backward() runs.
struct Pending {
  int64_t consumers = 0;  ///< that have not contributed yet
  Tensor grad;            ///< the sum of those that have
};
using Graph = std::unordered_map<const Variable*, Pending>;

/// Counts the consumers of every variable between `root` and the leaves.
Graph explore(const Variable* root) {
  Graph graph;
  graph[root];
  std::vector<const Variable*> stack{root};
  while (!stack.empty()) {
    const Node* node = stack.back()->node.get();
    stack.pop_back();
    if (node == nullptr) continue;
    check(!node->released(), "backward",
          "graph: expected one not yet differentiated, got {}'s saved tensors freed; pass "
          "retain_graph "
          "to the first backward()",
          node->op);
    for (const auto& input : node->inputs)
      if (input && graph[input.get()].consumers++ == 0) stack.push_back(input.get());
  }
  return graph;
}

Tensor run_hooks(const Variable& v, Tensor grad) {
  if (v.hooks.empty()) return grad;
  const auto hooks = v.hooks;  // one that a hook registers has its turn in the next pass
  for (const auto& hook : hooks) {
    Tensor replaced = hook(grad);
    if (!replaced.defined()) continue;
    check(replaced.shape() == v.shape && is_floating(replaced.dtype()), "register_hook",
          "gradient: expected a floating tensor of shape {}, got {}", v.shape, replaced);
    grad = std::move(replaced);
  }
  return grad;
}

/// That of a leaf's gradient: its own, but for f16, which has no room for small numbers.
DType grad_dtype(DType leaf) { return leaf == DType::f16 ? DType::f32 : leaf; }

void accumulate(Variable& leaf, Tensor grad) {
  if (!leaf.grad.defined()) {
    leaf.grad = detail::owned(std::move(grad), grad_dtype(leaf.dtype), leaf.format);
  } else if (leaf.grad.is_sparse()) {
    leaf.grad =
        detail::owned(detail::add(leaf.grad, std::move(grad)), grad_dtype(leaf.dtype), leaf.format);
  } else if (leaf.grad.is_dense_as(leaf.grad.format())) {
    detail::add_(leaf.grad, grad);
  } else {  // one that the user set
    leaf.grad = detail::add(leaf.grad, std::move(grad));
  }
}

/// The node's backward pass, held to its contract. Unless `again`, what it saved is freed, also if
/// the pass fails: it may have freed a part of that before.
Tensors differentiate(Node& node, const Variable& output, Tensor dy, bool again) {
  struct Release {
    Node* node;
    ~Release() {
      if (node) node->release();
    }
  } const at_the_end{again ? nullptr : &node};
  const Span span = Span::of_backward(node.op, node.module);
  check(
      !dy.is_sparse(), node.op,
      "backward: expected a dense gradient, got {}: what embedding(..., {{.sparse = true}}) looks "
      "up has to be a leaf",
      dy);
  if (node.grad_dtype == GradDType::of_output) dy = raw::to(dy, output.dtype);
  Tensors grads = node.backward(dy, again);
  check(grads.size() == node.inputs.size(), node.op, "backward: expected {} gradients, got {}",
        node.inputs.size(), grads.size());
  for (size_t i = 0; i < grads.size(); ++i) {
    const Variable* input = node.inputs[i].get();
    if (input == nullptr) continue;
    check(grads[i].defined() && grads[i].shape() == input->shape && is_floating(grads[i].dtype()),
          node.op, "backward: expected a floating gradient {} of shape {}, got {}", i, input->shape,
          grads[i]);
  }
  return grads;
}

void run_backward(Variable& root, Tensor gradient, bool retain_graph) {
  const Span span("backward");
  Graph graph = explore(&root);
  graph[&root].grad = std::move(gradient);
  std::vector<Variable*> ready{&root};
  while (!ready.empty()) {
    Variable& v = *ready.back();
    ready.pop_back();
    Tensor grad = run_hooks(v, std::move(graph[&v].grad));
    if (!v.node) {
      if (v.requires_grad) accumulate(v, std::move(grad));
      continue;
    }
    Tensors grads = differentiate(*v.node, v, std::move(grad), retain_graph);
    for (size_t i = 0; i < grads.size(); ++i) {
      Variable* input = v.node->inputs[i].get();
      if (input == nullptr) continue;
      Pending& pending = graph[input];
      Tensor part = std::move(grads[i]);
      pending.grad = pending.grad.defined() ? detail::add(std::move(pending.grad), std::move(part))
                                            : std::move(part);
      if (--pending.consumers == 0) ready.push_back(input);
    }
  }
}

}  // namespace

bool Tensor::requires_grad() const { return meta(*this) != nullptr && meta(*this)->requires_grad; }

bool Tensor::is_leaf() const { return meta(*this) == nullptr || !meta(*this)->node; }

Tensor& Tensor::requires_grad_(bool value) {
  check(defined(), "requires_grad_", "tensor: expected a defined tensor, got undefined");
  check(is_leaf(), "requires_grad_", "tensor: expected a leaf, got the output of {}",
        is_leaf() ? "" : meta(*this)->node->op);
  check(!value || is_floating(dtype()), "requires_grad_",
        "dtype: expected bf16, f16, f32 or f64, got {}", dtype());
  if (value || meta(*this) != nullptr) meta_or_new(*this).requires_grad = value;
  return *this;
}

Tensor Tensor::grad() const { return meta(*this) == nullptr ? Tensor() : meta(*this)->grad; }

void Tensor::set_grad(Tensor grad) {
  check(defined(), "set_grad", "tensor: expected a defined tensor, got undefined");
  check(is_leaf(), "set_grad", "tensor: expected a leaf, got the output of {}",
        is_leaf() ? "" : meta(*this)->node->op);
  check(!grad.defined() || (grad.shape() == shape() && grad.dtype() == grad_dtype(dtype())),
        "set_grad", "grad: expected {} {}, got {}", grad_dtype(dtype()), shape(), grad);
  if (grad.defined() || meta(*this) != nullptr) meta_or_new(*this).grad = std::move(grad);
}

Tensor Tensor::detach() const {
  check(defined(), "detach", "tensor: expected a defined tensor, got undefined");
  return raw::alias(*this);
}

void Tensor::register_hook(std::function<Tensor(const Tensor&)> hook) const {
  check(requires_grad(), "register_hook", "tensor: expected one that requires a gradient, got {}",
        *this);
  check(static_cast<bool>(hook), "register_hook", "hook: expected a function, got an empty one");
  meta(*this)->hooks.push_back(std::move(hook));
}

void Tensor::backward(const Tensor& gradient, bool retain_graph) const {
  check(requires_grad(), "backward", "tensor: expected one that requires a gradient, got {}",
        *this);
  check(gradient.defined() || numel() == 1, "backward",
        "gradient: expected one for a tensor that is not a scalar, got undefined for {}", *this);
  check(!gradient.defined() || (gradient.shape() == shape() && is_floating(gradient.dtype())),
        "backward", "gradient: expected a floating tensor of shape {}, got {}", shape(), gradient);
  const auto root = variable(*this);  // a hook may let go of this tensor
  const BackwardMode mode;
  run_backward(*root, gradient.defined() ? gradient.detach() : ones_like(*this), retain_graph);
}

}  // namespace quern
