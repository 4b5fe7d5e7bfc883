// Parts of a tensor, as views. Their gradient is dy in its place among zeros.
#pragma once
#include "quern/tensor/tensor.h"

namespace quern {

/// Elements start, start+step, ... below end of dimension `dim`, as x[start:end:step] in Python:
/// negative bounds count from its end, bounds outside are moved to it. Error: a step below 1.
Tensor slice(const Tensor& x, int64_t dim, int64_t start, int64_t end, int64_t step = 1);

/// Elements start ... start+length-1 of dimension `dim`. Error: not all of them exist.
Tensor narrow(const Tensor& x, int64_t dim, int64_t start, int64_t length);

/// Element `index` of dimension `dim`, which is removed. Error: no such element.
Tensor select(const Tensor& x, int64_t dim, int64_t index);

}  // namespace quern
