// Reverse-mode automatic differentiation in one file: matrices of f64 that remember how they were
// made. The library's engine, which does the same for tensors, is autograd/engine.cpp.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_set>
#include <utility>
#include <vector>

#include "quern/tensor/check.h"

namespace quern::lessons {

// [node]
/// What an op made, of what, and how a gradient goes back through it.
struct Node {
  int64_t rows, columns;
  std::vector<double> value;
  std::vector<double> grad;  // of the result that backward() began at; empty until something comes
  std::vector<std::shared_ptr<Node>> inputs;
  std::function<void(const Node&)> backward;  // adds to the gradients of the inputs

  /// grad[i] += what f(i) says, for all elements.
  template <class F>
  void accumulate(F f) {
    grad.resize(value.size());
    for (size_t i = 0; i < grad.size(); ++i) grad[i] += f(i);
  }
};
// [end]

/// A handle to a node. Copies are the same variable.
class Variable {
 public:
  /// A leaf: a number that no op made.
  Variable(int64_t rows, int64_t columns, std::vector<double> value)
      : node_(std::make_shared<Node>(Node{rows, columns, std::move(value), {}, {}, {}})) {
    check(std::ssize(node_->value) == rows * columns, "Variable",
          "value: expected {} numbers, got {}", rows * columns, std::ssize(node_->value));
  }
  explicit Variable(std::shared_ptr<Node> node) : node_(std::move(node)) {}

  int64_t rows() const { return node_->rows; }
  int64_t columns() const { return node_->columns; }
  std::vector<double>& value() const { return node_->value; }
  /// Zeros where backward() did not come by.
  std::vector<double> grad() const {
    return node_->grad.empty() ? std::vector<double>(node_->value.size()) : node_->grad;
  }
  void zero_grad() const { node_->grad.clear(); }
  const std::shared_ptr<Node>& node() const { return node_; }

  void backward() const;

 private:
  std::shared_ptr<Node> node_;
};

// [order]
/// All that a result was made of, each after what was made of it: when it is a node's turn, every
/// gradient that it will get has come. Without recursion: graphs may be deeper than a stack.
inline std::vector<Node*> topological_order(Node* result) {
  std::vector<Node*> finished;
  std::unordered_set<Node*> seen{result};
  std::vector<std::pair<Node*, size_t>> path{{result, 0}};  // and how many inputs were looked at
  while (!path.empty()) {
    auto& [node, next] = path.back();
    if (next == node->inputs.size()) {
      finished.push_back(node);
      path.pop_back();
    } else if (Node* const input = node->inputs[next++].get(); seen.insert(input).second) {
      path.emplace_back(input, 0);
    }
  }
  std::ranges::reverse(finished);
  return finished;
}

/// Adds d(this)/d(leaf) to the gradient of every leaf. This is one number.
inline void Variable::backward() const {
  check(value().size() == 1, "backward", "result: expected one number, got {}", value().size());
  const std::vector<Node*> order = topological_order(node_.get());
  node_->accumulate([](size_t) { return 1.0; });
  for (Node* node : order) {
    if (!node->backward) continue;  // a leaf keeps its gradient
    if (!node->grad.empty()) node->backward(*node);
    node->grad.clear();
  }
}
// [end]

/// The node of an op.
inline Variable made(int64_t rows, int64_t columns, std::vector<Variable> of,
                     std::function<void(const Node&)> backward) {
  auto node = std::make_shared<Node>(Node{rows, columns, {}, {}, {}, std::move(backward)});
  node->value.resize(static_cast<size_t>(rows * columns));
  for (const Variable& input : of) node->inputs.push_back(input.node());
  return Variable(node);
}

/// An op of one element each: y = f(x), dx = dy·slope(x).
template <class F, class Slope>
Variable elementwise(const Variable& x, F f, Slope slope) {
  Node* const in = x.node().get();  // kept alive by its place among the inputs
  Variable y = made(x.rows(), x.columns(), {x}, [=](const Node& out) {
    in->accumulate([&](size_t i) { return out.grad[i] * slope(in->value[i]); });
  });
  std::ranges::transform(x.value(), y.value().begin(), f);
  return y;
}
inline Variable relu(const Variable& x) {
  return elementwise(
      x, [](double v) { return std::max(v, 0.0); }, [](double v) { return v > 0 ? 1.0 : 0.0; });
}
inline Variable tanh(const Variable& x) {
  return elementwise(
      x, [](double v) { return std::tanh(v); },
      [](double v) { return 1 - std::tanh(v) * std::tanh(v); });
}

inline void check_same(const char* op, const Variable& a, const Variable& b) {
  check(a.rows() == b.rows() && a.columns() == b.columns(), op, "b: expected {}×{}, got {}×{}",
        a.rows(), a.columns(), b.rows(), b.columns());
}
inline Variable operator+(const Variable& a, const Variable& b) {
  check_same("add", a, b);
  Node *const left = a.node().get(), *const right = b.node().get();
  Variable y = made(a.rows(), a.columns(), {a, b}, [=](const Node& out) {
    for (Node* in : {left, right}) in->accumulate([&](size_t i) { return out.grad[i]; });
  });
  std::ranges::transform(a.value(), b.value(), y.value().begin(), std::plus<>());
  return y;
}
inline Variable operator*(const Variable& a, const Variable& b) {
  check_same("mul", a, b);
  Node *const left = a.node().get(), *const right = b.node().get();
  Variable y = made(a.rows(), a.columns(), {a, b}, [=](const Node& out) {
    left->accumulate([&](size_t i) { return out.grad[i] * right->value[i]; });
    right->accumulate([&](size_t i) { return out.grad[i] * left->value[i]; });
  });
  std::ranges::transform(a.value(), b.value(), y.value().begin(), std::multiplies<>());
  return y;
}
inline Variable sum(const Variable& x) {
  Node* const in = x.node().get();
  Variable y = made(1, 1, {x},
                    [=](const Node& out) { in->accumulate([&](size_t) { return out.grad[0]; }); });
  for (double v : x.value()) y.value()[0] += v;
  return y;
}

/// C = A·B; dA = dC·Bᵀ, dB = Aᵀ·dC.
inline Variable matmul(const Variable& a, const Variable& b) {
  check(a.columns() == b.rows(), "matmul", "b: expected {} rows, got {}", a.columns(), b.rows());
  const auto m = static_cast<size_t>(a.rows()), k = static_cast<size_t>(a.columns());
  const auto n = static_cast<size_t>(b.columns());
  Node *const left = a.node().get(), *const right = b.node().get();
  const auto each = [=](auto f) {  // product
    for (size_t i = 0; i < m; ++i)
      for (size_t p = 0; p < k; ++p)
        for (size_t j = 0; j < n; ++j) f(i * n + j, i * k + p, p * n + j);
  };
  Variable y = made(a.rows(), b.columns(), {a, b}, [=](const Node& out) {
    left->grad.resize(m * k), right->grad.resize(k * n);
    each([&](size_t c, size_t x, size_t w) { left->grad[x] += out.grad[c] * right->value[w]; });
    each([&](size_t c, size_t x, size_t w) { right->grad[w] += out.grad[c] * left->value[x]; });
  });
  each([&](size_t c, size_t x, size_t w) { y.value()[c] += left->value[x] * right->value[w]; });
  return y;
}

/// The largest difference between a leaf's gradient and (f(x+h) - f(x-h)) / 2h, the slope measured.
inline double gradcheck(const std::function<Variable()>& f, const std::vector<Variable>& leaves) {
  constexpr double h = 1e-6;
  for (const Variable& leaf : leaves) leaf.zero_grad();
  f().backward();
  double worst = 0;
  for (const Variable& leaf : leaves) {
    for (size_t i = 0; i < leaf.value().size(); ++i) {
      const double x = leaf.value()[i];
      const auto at = [&](double moved) { return leaf.value()[i] = moved, f().value()[0]; };
      const double slope = (at(x + h) - at(x - h)) / (2 * h);
      leaf.value()[i] = x;
      const double error = std::abs(slope - leaf.grad()[i]);
      worst = std::isnan(error) ? INFINITY : std::max(worst, error);
    }
  }
  return worst;
}

}  // namespace quern::lessons
