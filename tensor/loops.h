// The loops over tensors of one shape that are gone through together, as few as they can be.
#pragma once
#include <algorithm>
#include <cstdint>

#include "quern/tensor/shape.h"

namespace quern::detail {

/// The dimensions in the order of the first tensor's memory, outermost first, neighbours merged
/// where all tensors step through them evenly. A Place names the tensors, `first` and `rest`, and
/// has for each an element, counted from where it begins:
///   struct Place { int64_t to, from; };
///   Loops<Place, &Place::to, &Place::from> loops(to.shape(), to.strides(), from.strides());
template <class Place, int64_t Place::*first, int64_t Place::*... rest>
class Loops {
 public:
  /// One loop: how far a turn moves in each tensor, and how many turns there are.
  struct Axis : Place {
    int64_t size;
  };

  /// Never leaves fewer than one axis.
  template <class... S>
  explicit Loops(const Shape& shape, const S&... strides) {
    for (int d = 0; d < shape.size(); ++d)
      if (shape[d] != 1) axes_[count_++] = {{strides[d]...}, shape[d]};
    const auto encloses = [](const Axis& a, const Axis& b) { return a.*first > b.*first; };
    for (Axis* axis = axes_; axis != axes_ + count_; ++axis)
      std::rotate(std::upper_bound(axes_, axis, *axis, encloses), axis, axis + 1);
    int merged = 0;
    for (int d = 1; d < count_; ++d) {
      if (!encloses_evenly(axes_[merged], axes_[d])) axes_[++merged] = axes_[d];
      else axes_[merged] = {axes_[d], axes_[merged].size * axes_[d].size};
    }
    if (count_ == 0) axes_[0] = one_turn();
    count_ = merged + 1;
  }

  int count() const { return count_; }
  Axis& operator[](int i) { return axes_[i]; }  ///< outermost first
  const Axis& operator[](int i) const { return axes_[i]; }
  const Axis& inner() const { return axes_[count_ - 1]; }
  void drop_inner() { --count_; }
  /// All turns.
  int64_t elements() const {
    int64_t product = 1;
    for (int i = 0; i < count_; ++i) product *= axes_[i].size;
    return product;
  }
  /// Of an element, counted over the axes.
  Place place(int64_t index) const {
    return Walk(*this, index / inner().size).at(index % inner().size);
  }

  /// A run of the innermost loop after the other: where they are, from one to the next without the
  /// divisions that tell it of the first one, which would take as long as a run of some channels.
  class Walk {
   public:
    Walk(const Loops& loops, int64_t run) : loops_(loops) {
      for (int i = loops.count_ - 1; i-- > 0; run /= loops[i].size)
        move(begin_, loops[i], turns_[i] = run % loops[i].size);
    }
    /// Of an element of the run.
    Place at(int64_t element) const {
      Place place = begin_;
      move(place, loops_.inner(), element);
      return place;
    }
    void next() {
      for (int i = loops_.count_ - 1; i-- > 0; turns_[i] = 0) {
        move(begin_, loops_[i], 1);
        if (++turns_[i] < loops_[i].size) return;
        move(begin_, loops_[i], -loops_[i].size);
      }
    }

   private:
    const Loops& loops_;
    Place begin_ = {};
    int64_t turns_[kMaxDims];
  };

 private:
  static Axis one_turn() {
    Axis axis{{}, 1};
    axis.*first = 1;
    ((axis.*rest = 1), ...);
    return axis;
  }
  static bool encloses_evenly(const Axis& outer, const Axis& inner) {
    return outer.*first == inner.size * inner.*first &&
           ((outer.*rest == inner.size * inner.*rest) && ...);
  }
  static void move(Place& place, const Axis& axis, int64_t turns) {
    place.*first += turns * axis.*first;
    ((place.*rest += turns * axis.*rest), ...);
  }

  Axis axes_[kMaxDims];
  int count_ = 0;
};

}  // namespace quern::detail
