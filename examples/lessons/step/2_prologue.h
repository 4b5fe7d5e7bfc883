// Step 2: what the batch norm makes of y is made while the next convolution reads y, and again for
// the gradient of its filters: z is never in memory.
#pragma once
#include "1_epilogue.h"

namespace quern::lessons::step {

// [through]
/// A prologue: rows of y, read as those of z.
inline auto through(const Norm& norm) {
  return [map = norm.map()](const Block&, Rows y, float* room) {
    normalise(y, map, room);
    return Rows{room, y.count, y.channels};
  };
}
// [end]

struct NormalisedByReader {
  Tensor x, y;
  Norm norm;

  Tensor forward(const Tensor& input, const Parameters& p) {
    x = input;
    y = convolve_for_norm(x, p, norm);
    return convolve(y, p.w2, through(norm), nothing_more);
  }

  Tensor backward(const Tensor& dout, const Parameters& p, Parameters& gradients) const {
    gradients.w2 = weight_gradient(y, dout, through(norm));
    const Tensor dy = gradient_through_norm(dout, p, norm, y, gradients);
    gradients.w1 = weight_gradient(x, dy, as_it_is);
    return input_gradient(dy, p.w1, nothing_more);
  }
};

}  // namespace quern::lessons::step
