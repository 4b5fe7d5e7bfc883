// An image with channels innermost and zeros around it, for steps 3 to 6.
#pragma once
#include "conv.h"
#include "quern/tensor/storage.h"

namespace quern::lessons {

/// x [n][ih][iw][ic] as [n][height][width][ic], whose pixel (i, j) is pixel (i - pad_h, j - pad_w)
/// of x, or zeros: x itself where there is no padding.
class Padded {
 public:
  Padded(const ConvProblem& p, const float* x);
  /// Of image n.
  const float* at(int64_t n, int64_t i, int64_t j) const {
    return data_ + ((n * height + i) * width + j) * channels_;
  }
  const int64_t height, width;

 private:
  const int64_t channels_;
  const Workspace copy_;
  const float* data_;
};

}  // namespace quern::lessons
