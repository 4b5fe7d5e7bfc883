// The type that sums are kept in, and products computed in.
#pragma once
#include <type_traits>

namespace quern::kernels {

/// What sums of T are kept in, and its products are computed in: f64 for f64, else f32.
template <class T>
using Accumulator = std::conditional_t<std::is_same_v<T, double>, double, float>;

}  // namespace quern::kernels
