// Rows of a parameter that have missed steps whose gradients did not have them, and what brings
// them to where these steps would have: Idle::catch_up.
#pragma once
#include <bit>
#include <span>
#include <vector>

#include "quern/ops/kernels/optim/update_kernel.h"
#include "quern/optim/detail/in_f32.h"
#include "quern/tensor/tensor.h"

namespace quern::optim {

/// Of a sequence that grows at its end, the product of any stretch, in a logarithm of its length:
/// of each 2ᵏ neighbours that begin at a multiple of it the product is kept. x * y is y first.
template <class T>
class Products {
 public:
  /// Memory for one more, so that append() cannot fail.
  void reserve() {
    if (levels_.size() <= std::bit_width(size() + 1)) levels_.resize(levels_.size() + 8);
    for (auto& level : levels_)
      if (level.size() == level.capacity()) level.reserve(2 * level.size() + 8);
  }
  void append(T x) noexcept {
    for (auto level = levels_.begin();; ++level) {
      level->push_back(x);
      if (level->size() % 2 != 0) return;
      x = level->back() * level->end()[-2];
    }
  }
  T of(size_t begin, size_t end) const {
    T product{1};
    while (begin < end) {
      const auto left = static_cast<size_t>(std::bit_width(end - begin)) - 1;
      const auto k = std::min(left, static_cast<size_t>(std::countr_zero(begin)));
      product = levels_[k][begin >> k] * product;
      begin += size_t{1} << k;
    }
    return product;
  }
  size_t size() const { return levels_.empty() ? 0 : levels_[0].size(); }
  void clear() noexcept {
    for (auto& level : levels_) level.clear();
  }

 private:
  std::vector<std::vector<T>> levels_;
};

/// Keeps the steps since all rows were last up to date, and how many of them each row has had. A
/// rule derives from it: it keeps the steps' constants, and knows what several do at once.
class IdleRows {
 public:
  explicit IdleRows(int64_t rows);
  virtual ~IdleRows() = default;

  /// Brings rows (i64, rising, each once; undefined: all) up to date.
  void catch_up(const Tensor& param, std::span<Tensor> state, const Tensor& rows,
                const Rounding& rounding);
  int64_t behind() const;  ///< rows that are not up to date
  /// Memory to keep one more step, so that the rule's remember() cannot fail.
  virtual void reserve() = 0;
  /// All rows are up to date.
  void restart() noexcept;

 protected:
  /// After a step by `grad`, which the rule has kept.
  void stepped(const Tensor& grad) noexcept;
  /// What the kept steps begin ... end-1 do to elements without a gradient, of a parameter in
  /// state_dtype(); span.grad is unset. `rounds_to`: what each of them rounds the parameter to.
  virtual void run(kernels::UpdateSpan span, size_t begin, size_t end, DType rounds_to) const = 0;
  virtual void forget() noexcept = 0;

 private:
  Tensor had_;  // i64 [rows], of steps_
  int64_t steps_ = 0;
};

}  // namespace quern::optim
