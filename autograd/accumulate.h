// Sums of gradients.
#pragma once
#include "quern/tensor/tensor.h"

namespace quern::detail {

/// Does nothing else hold the tensor or its storage, so that it may be written over unseen?
bool solely_owned(const Tensor& t);

// Row-sparse gradients stay so with each other; with a dense one they make a dense one.

/// `t`, or where someone else may see it, or it isn't dense as `format` or of `dtype`, a copy that
/// is.
Tensor owned(Tensor t, DType dtype, MemoryFormat format);

/// sum += t, in sum's dtype. `sum` is dense; t, which may be row-sparse, has its shape.
void add_(const Tensor& sum, const Tensor& t);

/// a + b in the wider dtype, in the memory of one of them where nothing else holds it.
Tensor add(Tensor a, Tensor b);

}  // namespace quern::detail
