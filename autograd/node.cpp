#include "quern/autograd/node.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>

#include "quern/tensor/raw.h"

namespace quern {

std::shared_ptr<Variable> variable(const Tensor& t) {
  auto* meta = static_cast<Variable*>(t.autograd());
  return meta == nullptr ? nullptr : meta->shared_from_this();
}

SavedTensor::SavedTensor(std::string_view op, const Tensor& t) : op_(op) {
  if (!t.defined()) return;
  tensor_ = raw::alias(t);
  version_ = t.version();
}

const Tensor& SavedTensor::get() const {
  if (tensor_.defined())
    check(tensor_.version() == version_, op_,
          "saved tensor {}: expected version {}, got {}: it was changed in place after the forward "
          "pass",
          tensor_, version_, tensor_.version());
  return tensor_;
}

// A node that nothing else keeps alive hands its inputs to this one before it dies.
Node::~Node() {
  Edges dying = std::move(inputs);
  while (!dying.empty()) {
    const std::shared_ptr<Variable> v = std::move(dying.back());
    dying.pop_back();
    if (!v || v.use_count() > 1 || !v->node || v->node.use_count() > 1) continue;
    Edges& next = v->node->inputs;
    std::move(next.begin(), next.end(), std::back_inserter(dying));
    next.clear();
  }
}

namespace detail {

Edges edges(const Tensors& inputs) {
  if (!grad_enabled()) return {};
  Edges edges;
  edges.reserve(inputs.size());
  for (const Tensor& t : inputs) edges.push_back(t.requires_grad() ? variable(t) : nullptr);
  if (std::ranges::none_of(edges, [](const auto& edge) { return edge != nullptr; })) return {};
  return edges;
}

void set_history(const Tensor& y, std::shared_ptr<Node> node) {
  if (y.autograd() != nullptr || !is_floating(y.dtype()))
    throw std::logic_error(
        fmt::format("{}: records {}, which is not a fresh floating output", node->op, y));
  auto v = std::make_shared<Variable>(y);
  v->requires_grad = true;
  v->node = std::move(node);
  y.set_autograd(std::move(v));
}

}  // namespace detail
}  // namespace quern
