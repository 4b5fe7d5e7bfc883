// Every op and its gradients against PyTorch: tests/pytorch/make_goldens.py holds the same cases by
// name.
#include <doctest/doctest.h>

#include <cmath>
#include <string>

#include "gradcheck_helper.h"
#include "ops/op_cases.h"

namespace quern::test {
namespace {

// The goldens are PyTorch's f64 results of f32 inputs, rounded to f32; ours are computed in f32.
// The sums behind an element have at most 147 terms (the stem's), and elementary functions are
// within 1 ulp (u = 2^-24): by norm, where rounding errors don't all align, 2e-6 = 34u covers
// √147·u and a few ulp. Those of ops one after the other don't align either.
void check_case(const std::string& name, const OpCase& op, MemoryFormat format) {
  CAPTURE(name);
  CAPTURE(to_string(format));
  Tensors inputs;
  for (const Tensor& in : golden_inputs(name)) {
    inputs.push_back(raw::clone(in.dim() == 4 ? raw::contiguous(in, format) : in));
    if (is_floating(in.dtype())) inputs.back().requires_grad_();
  }
  REQUIRE(!inputs.empty());
  const Tensor out = op.run(inputs);
  const double bound = 2e-6 * std::sqrt(op.ops);
  CHECK(relative_difference(out, goldens().at(name + ".out")) < bound);
  out.backward(goldens().at(name + ".dout"));
  for (size_t i = 0; i < inputs.size(); ++i)
    if (inputs[i].grad().defined() || goldens().contains(name + ".grad" + std::to_string(i)))
      CHECK(relative_difference(inputs[i].grad(),
                                goldens().at(name + ".grad" + std::to_string(i))) < bound);
}

TEST_CASE("ops and their gradients agree with PyTorch") {
  for (const auto& [name, op] : op_cases()) {
    check_case(name, op, MemoryFormat::contiguous);
    if (name.find("2d") != name.npos || name.find("norm") != name.npos)
      check_case(name, op, MemoryFormat::channels_last);
  }
}

TEST_CASE("every golden has a case") {
  for (const auto& [name, t] : goldens())
    CHECK_MESSAGE(op_cases().contains(name.substr(0, name.find('.'))), name);
}

}  // namespace
}  // namespace quern::test
