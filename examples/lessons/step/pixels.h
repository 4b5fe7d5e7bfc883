// What the steps of this lesson share: tensors of pixels, counted as they are read and written, and
// blocks of them. Such a tensor is f32 [pixels, channels]: channels last.
#pragma once
#include "quern/quern.h"
#include "quern/tensor/divide.h"
#include "rows.h"

namespace quern::lessons::step {

/// Pixels begin ... end. So few stay in the core's own cache from one loop to the next.
struct Block {
  static constexpr int64_t kPixels = 128;
  int64_t index, begin, end;
  Block(const Tensor& t, int64_t index)
      : index(index), begin(index * kPixels), end(std::min(begin + kPixels, t.size(0))) {}
  int64_t count() const { return end - begin; }
};

inline int64_t block_count(const Tensor& t) { return ceil_div(t.size(0), Block::kPixels); }

/// f(block) for all blocks of a tensor, each on some thread.
template <class F>
void each_block(const Tensor& t, F f) {
  parallel_for(block_count(t), [&](int64_t i) { f(Block(t, i)); });
}

/// Bytes of pixels that passes have read and written. Weights are small, and not counted.
struct Traffic {
  int64_t read = 0, written = 0;
  int64_t bytes() const { return read + written; }
};
inline Traffic traffic;

/// For a pass that reads all of t once: what gives the rows of a block.
inline auto read(const Tensor& t) {
  traffic.read += t.nbytes();
  return [v = t.data<float>(), channels = t.size(1)](const Block& block) {
    return Rows{v + block.begin * channels, block.count(), channels};
  };
}
/// For a pass that writes them: what gives their place.
inline auto write(const Tensor& t) {
  traffic.written += t.nbytes();
  return [to = t.out<float>(), channels = t.size(1)](const Block& block) {
    return to + block.begin * channels;
  };
}

/// Sums a channel of each block, which threads take at once; then of all, added in one order: the
/// same bits for any number of threads.
class BlockSums {
 public:
  explicit BlockSums(const Tensor& t)
      : pixels_(t.size(0)), sums_(zeros({block_count(t), t.size(1)})) {}
  float* of(const Block& block) const { return sums_.out<float>() + block.index * sums_.size(1); }
  /// Over all pixels; f64 [channels].
  Tensor mean() const { return sum(to(sums_, DType::f64), {0}) / static_cast<double>(pixels_); }

 private:
  int64_t pixels_;
  Tensor sums_;  // f32 [blocks, channels]
};

}  // namespace quern::lessons::step
