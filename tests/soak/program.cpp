#include "program.h"

#include <cmath>

#include "gradcheck_helper.h"
#include "quern/autograd/grad_mode.h"
#include "quern/ops/binary.h"
#include "quern/ops/sum.h"
#include "quern/ops/unary.h"

namespace quern::soak {

std::string Program::text() const {
  std::string all;
  for (size_t i = 0; i < nodes.size(); ++i) {
    all += fmt::format("  {} = {}", i, nodes[i].text);
    for (const size_t input : nodes[i].inputs) all += fmt::format(" {}", input);
    all += "\n";
  }
  return all;
}

size_t Drawing::leaf(const Shape& shape, double low, double high, bool wide) {
  Node node;
  node.value = test::random(shape, dice.bits(), DType::f64, MemoryFormat::contiguous, low, high);
  // Of bf16's values, so that all dtypes begin with the same ones.
  node.value = raw::to(raw::to(node.value, DType::bf16), DType::f64);
  node.wide = wide;
  using enum Node::Layout;
  if (dice.one_in(4)) node.layout = strided;
  else if (shape.size() == 4 && dice.one_in(2)) node.layout = channels_last;
  constexpr const char* names[] = {"", " channels_last", " strided"};
  node.text =
      fmt::format("leaf {}{}{}", shape, names[static_cast<int>(node.layout)], wide ? " f32" : "");
  return add(std::move(node));
}

size_t Drawing::any(int dims) {
  std::vector<size_t> fitting;
  for (size_t i = 0; i < values_.size(); ++i)
    if ((dims < 0 || values_[i].dim() == dims) && !program_.nodes[i].wide) fitting.push_back(i);
  if (!fitting.empty() && !dice.one_in(4))
    return fitting[static_cast<size_t>(dice(0, static_cast<int64_t>(fitting.size()) - 1))];
  Shape shape;
  const int64_t rank = dims < 0 ? dice(0, 4) : dims;
  for (int64_t d = 0; d < rank; ++d)
    shape.push_back(dice.one_in(6) ? 1 : dice.one_in(40) ? 0 : dice(2, rank == 4 ? 9 : 40));
  return leaf(shape);
}

size_t Drawing::positive(size_t i) {
  i = add({.text = "abs",
           .inputs = {i},
           .apply = [](const Tensors& t) { return abs(t[0]); },
           .exact = true});
  return add(
      {.text = "+ 0.5", .inputs = {i}, .apply = [](const Tensors& t) { return t[0] + 0.5; }});
}

size_t Drawing::add(Node node) {
  constexpr double kLarge = 64;
  constexpr int64_t kMost = 6000;  // elements
  Tensor y = node.value;
  if (node.apply) {
    const NoGradGuard no_grad;
    Tensors inputs;
    for (const size_t input : node.inputs) inputs.push_back(values_[input]);
    y = node.apply(inputs);
  }
  check(y.numel() <= kMost, "soak", "too many");
  for (const double element : y.to_vector<double>())
    check(std::abs(element) <= kLarge, "soak", "too large");
  for (const size_t input : node.inputs) ++consumers_[input];
  values_.push_back(raw::contiguous(y));
  consumers_.push_back(0);
  program_.nodes.push_back(std::move(node));
  return values_.size() - 1;
}

void Drawing::attempt(const std::function<void()>& draw) {
  const auto program = program_;
  const auto values = values_;
  const auto consumers = consumers_;
  try {
    draw();
  } catch (const Error&) {
    program_ = program, values_ = values, consumers_ = consumers;
  }
}

/// Adds up all that nobody takes, weighted.
Program Drawing::finish() {
  std::optional<size_t> total;
  const size_t drawn = values_.size();
  for (size_t i = 0; i < drawn; ++i) {
    if (consumers_[i] != 0 || values_[i].numel() == 0) continue;
    const Tensor weights =
        raw::to(test::random(values_[i].shape(), dice.bits(), DType::bf16), DType::f64);
    const size_t weighted =
        add({.text = "weighted", .inputs = {i}, .apply = [weights](const Tensors& t) {
               return mul(t[0], raw::to(weights, t[0].dtype()));
             }});
    const size_t part = add({.text = "mean",
                             .inputs = {weighted},
                             .apply = [](const Tensors& t) { return mean(t[0]); },
                             .terms = values_[i].numel()});
    total = !total ? part
                   : add({.text = "add", .inputs = {*total, part}, .apply = [](const Tensors& t) {
                            return t[0] + t[1];
                          }});
  }
  return program_;
}

Program draw_program(Dice& dice) {
  Drawing drawing(dice);
  const int64_t ops = dice(2, 12);
  for (int64_t i = 0; i < ops; ++i) {
    const auto& all = draws();
    const Draw draw = all[static_cast<size_t>(dice(0, static_cast<int64_t>(all.size()) - 1))];
    drawing.attempt([&] { draw(drawing); });
  }
  drawing.attempt([&] { drawing.leaf({3}); });
  return drawing.finish();
}

}  // namespace quern::soak
