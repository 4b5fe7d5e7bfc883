// Step 0: conv → batch norm → relu → conv, one after the other. The batch norm passes three times
// over what the first convolution made: for its mean, for its variance, and to normalise.
#pragma once
#include "norm.h"
#include "product.h"

namespace quern::lessons::step {

// [mean]
inline Tensor mean_of(const Tensor& y) {
  const BlockSums sums(y);
  const auto rows = read(y);
  each_block(y, [&](const Block& block) { add_rows(rows(block), sums.of(block)); });
  return sums.mean();
}
// [end]

inline Tensor variance_of(const Tensor& y, const Tensor& mean) {
  const BlockSums squares(y);
  const Tensor center = to(mean, DType::f32);
  const auto rows = read(y);
  each_block(y, [&](const Block& block) {
    add_squares(rows(block), center.data<float>(), squares.of(block));
  });
  return squares.mean();
}

inline Tensor normalise(const Tensor& y, const Norm& norm) {
  const Tensor z = empty_like(y);
  const auto rows = read(y);
  const auto to = write(z);
  each_block(y, [&](const Block& block) { normalise(rows(block), norm.map(), to(block)); });
  return z;
}

/// A pass back over y and dz, for the two sums of a NormGradient.
inline NormGradient gradient_of(const Norm& norm, const Tensor& y, const Tensor& dz,
                                Parameters& gradients) {
  const BlockSums sums(y), products(y);
  const auto rows = read(y), slopes = read(dz);
  each_block(y, [&](const Block& block) {
    add_gradients(rows(block), norm.map(), slopes(block).v, sums.of(block), products.of(block));
  });
  return NormGradient(norm, sums.mean(), products.mean(), y.size(0), gradients);
}

/// What is kept from forward() to backward() are its members.
struct ThreePasses {
  Tensor x, y, z;
  Norm norm;

  Tensor forward(const Tensor& input, const Parameters& p) {
    x = input;
    y = convolve(x, p.w1, as_it_is, nothing_more);
    const Tensor mean = mean_of(y);
    norm = Norm({mean, variance_of(y, mean)}, p);
    z = normalise(y, norm);
    return convolve(z, p.w2, as_it_is, nothing_more);
  }

  // [backward]
  /// Returns dx.
  Tensor backward(const Tensor& dout, const Parameters& p, Parameters& gradients) const {
    gradients.w2 = weight_gradient(z, dout, as_it_is);
    const Tensor dz = input_gradient(dout, p.w2, nothing_more);
    const NormGradient g = gradient_of(norm, y, dz, gradients);
    apply_gradient(norm, g, y, dz);  // it is dy from here on
    gradients.w1 = weight_gradient(x, dz, as_it_is);
    return input_gradient(dz, p.w1, nothing_more);
  }
  // [end]
};

/// What is left without the batch norm.
struct ConvolutionsAlone {
  Tensor x, y;

  Tensor forward(const Tensor& input, const Parameters& p) {
    x = input;
    y = convolve(x, p.w1, as_it_is, nothing_more);
    return convolve(y, p.w2, as_it_is, nothing_more);
  }

  Tensor backward(const Tensor& dout, const Parameters& p, Parameters& gradients) const {
    gradients.w2 = weight_gradient(y, dout, as_it_is);
    const Tensor dy = input_gradient(dout, p.w2, nothing_more);
    gradients.w1 = weight_gradient(x, dy, as_it_is);
    return input_gradient(dy, p.w1, nothing_more);
  }
};

}  // namespace quern::lessons::step
