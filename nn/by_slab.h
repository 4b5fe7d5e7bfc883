// The batch of an evaluation by slabs of images, each through the whole network.
#pragma once
#include "quern/nn/module.h"
#include "quern/tensor/parallel.h"

namespace quern::nn {

/// f(x) of a network, [N, ...]. In evaluation without gradients each image gives what it gives by
/// itself: f gets as many of them at a time as a core keeps near, beside other slabs on other
/// threads, and the result has the same bits. Threads wait for each other once then, not after
/// each op, and find their activations in their own L2. `widest`: values of the largest activation
/// a pixel of the image.
Tensor by_slab(const Module& network, const Tensor& x, int64_t widest,
               FunctionRef<Tensor(const Tensor&)> f);

}  // namespace quern::nn
