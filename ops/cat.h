// Tensors joined.
#pragma once
#include "quern/tensor/tensor.h"

namespace quern {

/// The tensors one after another along dimension `dim`, in the widest of their dtypes and the
/// format of the first. Gradients are the parts of dy. Errors: no tensors, a scalar, sizes that
/// differ elsewhere.
Tensor cat(const Tensors& tensors, int64_t dim = 0);

/// The same along a new dimension, which comes before dimension `dim` (-1: after the last). Error:
/// shapes that differ.
Tensor stack(const Tensors& tensors, int64_t dim = 0);

}  // namespace quern
