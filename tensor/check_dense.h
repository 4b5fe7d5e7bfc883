// What almost every op asks of its operands first.
#pragma once
#include <string_view>

#include "quern/tensor/tensor.h"

namespace quern::detail {

/// Error of `op`, by the argument's name: undefined, or row-sparse.
inline void check_dense(std::string_view op, std::string_view name, const Tensor& t) {
  check(t.defined(), op, "{}: expected a defined tensor, got undefined", name);
  check(!t.is_sparse(), op, "{}: expected a dense tensor, got {}; to_dense() makes it one", name,
        t);
}

}  // namespace quern::detail
