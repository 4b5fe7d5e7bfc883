// Every op, once: golden_test.cpp holds it to PyTorch, hostile_test.cpp gives it operands of any
// layout.
#pragma once
#include <functional>
#include <map>
#include <string>

#include "quern/tensor/tensor.h"
#include "quern/tensor/tensor_dict.h"

namespace quern::test {

struct OpCase {
  std::function<Tensor(const Tensors&)> run;
  bool view = false;  ///< may the output be the memory of an input, as PyTorch's is?
  int ops = 1;        ///< how many it computes one after the other
};

/// By name: make_goldens.py has a case of the same name each.
const std::map<std::string, OpCase>& op_cases();

/// tests/goldens/ops.safetensors: NAME.in0..., .out, .dout and .grad0... of each case.
const TensorDict& goldens();
/// NAME.in0...
Tensors golden_inputs(const std::string& name);

}  // namespace quern::test
