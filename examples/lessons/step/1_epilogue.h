// Step 1: sums are taken in the epilogue of the product that makes what they are of, while its rows
// are in the core's own cache: no pass of their own, neither forward nor backward.
#pragma once
#include "0_three_passes.h"

namespace quern::lessons::step {

/// The mean of each block and Σ(y - mean)²; merged, those of all. After Chan et al., "Algorithms
/// for computing the sample variance", 1983.
class BlockMoments {
 public:
  BlockMoments(int64_t pixels, int64_t blocks, int64_t channels)
      : pixels_(static_cast<double>(pixels)),
        counts_(empty({blocks, 1})),
        means_(zeros({blocks, channels})),
        squares_(zeros({blocks, channels})) {}

  // [moments]
  void take(const Block& block, Rows y) const {
    const auto count = static_cast<float>(block.count());
    float* const mean = means_.out<float>() + block.index * y.channels;
    add_rows(y, mean);
    for (int64_t c = 0; c < y.channels; ++c) mean[c] /= count;
    add_squares(y, mean, squares_.out<float>() + block.index * y.channels);
    counts_.out<float>()[block.index] = count;
  }

  Moments merged() const {
    const Tensor counts = to(counts_, DType::f64), means = to(means_, DType::f64);
    const Tensor mean = sum(counts * means, {0}) / pixels_;
    const Tensor distance = means - mean;
    const Tensor squares = squares_ + counts * distance * distance;  // from the mean of all
    return {mean, sum(squares, {0}) / pixels_};
  }
  // [end]

 private:
  double pixels_;
  Tensor counts_, means_, squares_;  // f32 [blocks, 1], [blocks, channels], [blocks, channels]
};

/// The first convolution, and the batch norm of what it makes.
inline Tensor convolve_for_norm(const Tensor& x, const Parameters& p, Norm& norm) {
  const BlockMoments moments(x.size(0), block_count(x), p.w1.size(0));
  const Tensor y = convolve(x, p.w1, as_it_is,
                            [&](const Block& block, Rows rows) { moments.take(block, rows); });
  norm = Norm(moments.merged(), p);
  return y;
}

/// From dout back to dy.
inline Tensor gradient_through_norm(const Tensor& dout, const Parameters& p, const Norm& norm,
                                    const Tensor& y, Parameters& gradients) {
  const BlockSums sums(y), products(y);
  const auto rows = read(y);
  const Tensor dz = input_gradient(dout, p.w2, [&](const Block& block, Rows slopes) {
    add_gradients(rows(block), norm.map(), slopes.v, sums.of(block), products.of(block));
  });
  const NormGradient g(norm, sums.mean(), products.mean(), y.size(0), gradients);
  apply_gradient(norm, g, y, dz);
  return dz;
}

struct MomentsInEpilogue {
  Tensor x, y, z;
  Norm norm;

  Tensor forward(const Tensor& input, const Parameters& p) {
    x = input;
    y = convolve_for_norm(x, p, norm);
    z = normalise(y, norm);
    return convolve(z, p.w2, as_it_is, nothing_more);
  }

  Tensor backward(const Tensor& dout, const Parameters& p, Parameters& gradients) const {
    gradients.w2 = weight_gradient(z, dout, as_it_is);
    const Tensor dy = gradient_through_norm(dout, p, norm, y, gradients);
    gradients.w1 = weight_gradient(x, dy, as_it_is);
    return input_gradient(dy, p.w1, nothing_more);
  }
};

}  // namespace quern::lessons::step
