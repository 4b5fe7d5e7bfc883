// The line of QUERN_VERBOSE that most ops have.
#pragma once
#include "quern/tensor/tensor.h"
#include "quern/tensor/verbose.h"

namespace quern::detail {

/// Of a tensor like x, and of so many bytes that are read or written.
inline void report(VerboseOp& line, std::string_view kernel, const Tensor& x, int64_t bytes) {
  if (!line) return;
  line.set(kernel, to_string(x.shape()), fmt::format("{}:{}", x.dtype(), x.format()));
  line.set_work(0, bytes);
}

}  // namespace quern::detail
