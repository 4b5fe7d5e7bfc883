#include "quern/autograd/node.h"

#include <algorithm>

#include "quern/tensor/raw.h"

namespace quern {

std::string Variable::describe() const {
  if (node) return fmt::format("grad_fn=<{}>", node->op);
  return requires_grad ? "requires_grad=True" : "";
}

std::shared_ptr<Variable> variable(const Tensor& t) {
  auto* meta = static_cast<Variable*>(t.autograd());
  return meta == nullptr ? nullptr : meta->shared_from_this();
}

bool Recompute::makes(const Tensor& t) const {
  const auto last = last_.lock();
  return last && last == t.storage() && last->version() == version_;
}

Tensor Recompute::get() {
  const auto storage = last_.lock();
  if (storage && storage->version() == version_)
    return Tensor(storage, shape_, strides_, offset_, dtype_);
  Tensor t = make_();
  remember(t);
  return t;
}

void Recompute::remember(const Tensor& t) {
  last_ = t.storage();
  version_ = t.version();
  shape_ = t.shape();
  strides_ = t.strides();
  offset_ = t.offset();
  dtype_ = t.dtype();
}

SavedTensor::SavedTensor(std::string_view op, const Tensor& t) : op_(op) {
  if (!t.defined()) return;
  const auto v = variable(t);
  if (v && v->node && v->node->recompute && v->node->recompute->makes(t)) {
    recompute_ = v->node->recompute;
  } else {
    tensor_ = raw::alias(t);
    version_ = t.version();
  }
}

const Tensor& SavedTensor::get() const {
  if (recompute_ && !tensor_.defined()) {
    tensor_ = recompute_->get();
    version_ = tensor_.version();
  }
  if (tensor_.defined())
    check(tensor_.version() == version_, op_,
          "saved tensor {}: expected version {}, got {}: it was changed in place after the forward "
          "pass",
          tensor_, version_, tensor_.version());
  return tensor_;
}

namespace detail {

Edges edges(std::span<const Tensor> inputs) {
  if (!grad_enabled()) return {};
  Edges edges;
  edges.reserve(inputs.size());
  for (const Tensor& t : inputs) edges.push_back(t.requires_grad() ? variable(t) : nullptr);
  if (std::ranges::none_of(edges, [](const auto& edge) { return edge != nullptr; })) return {};
  return edges;
}

void set_history(const Tensor& y, std::shared_ptr<Node> node) {
  check(y.defined() && y.autograd() == nullptr && is_floating(y.dtype()), node->op,
        "output: expected a fresh floating tensor, got {}", y);
  auto v = std::make_shared<Variable>(y);
  v->requires_grad = true;
  v->node = std::move(node);
  y.set_autograd(std::move(v));
}

}  // namespace detail
}  // namespace quern
