// Random graphs of ops.
#pragma once
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "quern/tensor/tensor.h"

namespace quern::soak {

struct Dice {
  std::mt19937_64 bits;
  int64_t operator()(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(bits() % static_cast<uint64_t>(high - low + 1));
  }
  bool one_in(int64_t n) { return (*this)(1, n) == 1; }
};

using Op = std::function<Tensor(const Tensors&)>;

/// A leaf or an op of a graph.
struct Node {
  std::string text = {};
  std::vector<size_t> inputs = {};  // nodes before it
  Op apply = nullptr;               // undefined: a leaf

  // Of a leaf.
  Tensor value = {};  // f64
  enum class Layout { contiguous, channels_last, strided } layout = Layout::contiguous;
  bool wide = false;  // f32 where others are bf16: a parameter of a norm, a bias

  // Of an op: how its result may differ from the exact one (noise.h).
  int64_t terms = 1;            // of the longest sum of its forward and backward pass
  bool exact = false;           // it moves or takes elements and computes none
  bool by_largest = false;      // its rounding is relative to the largest elements of its operands
  bool rounds_between = false;  // to its dtype, not only at the end
  Op definition = nullptr;      // with noise where terms meet; undefined: apply itself
};

struct Program {
  std::vector<Node> nodes;  // the last is a scalar to which all others lead
  std::string text() const;
};

Program draw_program(Dice& dice);

/// Draws ops and adds them to a program. All is computed in f64 on the way: what is not finite, or
/// large, or refused, is left out.
class Drawing {
 public:
  explicit Drawing(Dice& dice) : dice(dice) {}

  size_t leaf(const Shape& shape, double low = -1, double high = 1, bool wide = false);
  /// Some node; with `dims`, one of so many dimensions, which is made where there is none.
  size_t any(int dims = -1);
  /// The elements of node i moved above 0.5.
  size_t positive(size_t i);
  size_t add(Node node);
  const Tensor& at(size_t i) const { return values_[i]; }
  Program finish();
  /// Calls draw() and takes back what it added if it is refused.
  void attempt(const std::function<void()>& draw);

  Dice& dice;

 private:
  Program program_;
  Tensors values_;
  std::vector<int> consumers_;
};

/// Adds an op, and leaves for it.
using Draw = void (*)(Drawing&);
const std::vector<Draw>& draws();

}  // namespace quern::soak
