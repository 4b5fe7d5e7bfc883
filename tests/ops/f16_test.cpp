// Every op on f16: it moves elements as they are, or refuses by name, and never takes the bits for
// others'.
#include <set>

#include "ops/hostile.h"
#include "ops/op_cases.h"
#include "quern/ops/autocast.h"
#include "quern/ops/binary.h"
#include "quern/ops/convert.h"
#include "quern/ops/detail/elementwise.h"
#include "quern/ops/dropout.h"
#include "quern/ops/embedding.h"
#include "quern/ops/sum.h"
#include "quern/ops/unary.h"
#include "quern/optim/ema.h"

using namespace quern;
using namespace quern::test;

namespace {

/// The cases that take f16 and nothing else: they move elements, compare them, or sum rows of a
/// table.
const std::set<std::string> kTakesF16 = {"cat",
                                         "clone",
                                         "contiguous",
                                         "dropout_eval",
                                         "embedding",
                                         "embedding_bag",
                                         "embedding_bag_padding",
                                         "embedding_bag_sum",
                                         "embedding_options",
                                         "expand",
                                         "flatten",
                                         "narrow",
                                         "pad",
                                         "permute",
                                         "reshape",
                                         "select",
                                         "slice",
                                         "squeeze",
                                         "stack",
                                         "topk",
                                         "transpose",
                                         "unsqueeze"};

constexpr const char* kRefusal =
    "] dtype: expected bf16, f32 or f64, got f16, which is storage: to(DType::f32) or bf16 comes "
    "first";

struct Outcome {
  std::string error;
  Tensor out;
  Tensors gradients;
};

/// The case on these operands, with gradients of those in f32.
Outcome attempt(const OpCase& op, const Tensors& operands) {
  Outcome o;
  Tensors leaves;
  for (const Tensor& t : operands) {
    leaves.push_back(raw::alias(t));
    if (t.dtype() == DType::f32) leaves.back().requires_grad_();
  }
  try {
    o.out = op.run(leaves);
    if (o.out.requires_grad()) o.out.backward(ones(o.out.shape()));
  } catch (const Error& error) {
    o.error = error.what();
  }
  for (const Tensor& leaf : leaves) o.gradients.push_back(leaf.grad());
  return o;
}

/// The same numbers in f32.
Tensor widened(const Tensor& t) { return t.dtype() == DType::f16 ? raw::to(t, DType::f32) : t; }

/// What is wrong with a case on operands of which some are f16, or nothing.
std::string walk(const OpCase& op, const Tensors& operands, bool all) {
  Tensors wide;
  std::vector<std::string> before;
  for (const Tensor& t : operands) wide.push_back(widened(t)), before.push_back(memory_of(t));
  const Outcome got = attempt(op, operands), expected = attempt(op, wide);
  for (size_t i = 0; i < operands.size(); ++i)
    if (memory_of(operands[i]) != before[i]) return fmt::format("operand {} was written to", i);
  if (!got.error.empty())
    return got.error.find(all ? kRefusal : "f16") == got.error.npos ? got.error : "";
  if (!expected.error.empty()) return "expected: " + expected.error;
  if (!same_bits(got.out, raw::to(expected.out, got.out.dtype())))
    return fmt::format("off by {}", max_abs_difference(got.out, expected.out));
  for (size_t i = 0; i < operands.size(); ++i) {
    if (operands[i].dtype() != DType::f32) continue;
    const Tensor &a = got.gradients[i], &b = expected.gradients[i];
    // One on its way through f16 may have been rounded to that.
    if (a.defined() != b.defined() || (a.defined() && relative_difference(a, b) > 0x1p-11))
      return fmt::format("gradient {}", i);
  }
  return {};
}

Tensor in_f16(const Tensor& t) { return is_floating(t.dtype()) ? raw::to(t, DType::f16) : t; }
/// f32 with the numbers of f16.
Tensor in_f32(const Tensor& t) {
  return is_floating(t.dtype()) ? raw::to(in_f16(t), DType::f32) : t;
}

}  // namespace

TEST_CASE("f16: every op takes operands in it as they are, or refuses them by its name") {
  std::set<std::string> takes;
  for (const bool autocasts : {false, true}) {
    const AutocastGuard guard(autocasts);
    for (const auto& [name, op] : op_cases())
      for (const Layout& layout : layouts()) {
        Tensors operands;
        for (const Tensor& t : golden_inputs(name)) {
          const Tensor laid_out = layout.make(in_f16(t));
          operands.push_back(laid_out.defined() ? laid_out : in_f16(t));
        }
        const std::string wrong = walk(op, operands, true);
        CHECK_MESSAGE(wrong.empty(), name, ", ", layout.name, ": ", wrong);
        if (layout.name == "dense" && attempt(op, operands).error.empty()) takes.insert(name);
      }
  }
  CHECK(takes == kTakesF16);
}

TEST_CASE("f16: an operand in it beside others in f32 is widened, or refused") {
  int right = 0, refused = 0;
  for (const auto& [name, op] : op_cases()) {
    const Tensors inputs = golden_inputs(name);
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!is_floating(inputs[i].dtype()) || inputs.size() < 2) continue;
      Tensors operands;
      for (const Tensor& t : inputs) operands.push_back(in_f32(t));
      operands[i] = in_f16(inputs[i]);
      const std::string wrong = walk(op, operands, false);
      CHECK_MESSAGE(wrong.empty(), name, ", operand ", i, ": ", wrong);
      ++(attempt(op, operands).error.empty() ? right : refused);
    }
  }
  CHECK(right > 20);
  CHECK(refused > 20);
}

TEST_CASE("f16: promotes with other dtypes as in PyTorch") {
  const Tensor half = full({2}, 1.5, DType::f16);
  for (const DType other : {DType::bf16, DType::f32, DType::f64}) {
    const Tensor y = half + full({2}, 0.25, other);
    CHECK(y.dtype() == (other == DType::f64 ? DType::f64 : DType::f32));
    CHECK(y.to_vector<double>() == std::vector{1.75, 1.75});
  }
  CHECK_THROWS_WITH_AS(half + ones({2}, DType::i64), fmt::format("[add{}", kRefusal).c_str(),
                       Error);
  CHECK_THROWS_WITH_AS(half * 2.0, fmt::format("[mul{}", kRefusal).c_str(), Error);
}

TEST_CASE("f16: nothing computes in it") {
  const Tensor half = ones({2, 3}, DType::f16);
  const auto refuses = [](const char* op, auto f) {
    CHECK_THROWS_WITH_AS(f(), fmt::format("[{}{}", op, kRefusal).c_str(), Error);
  };
  refuses("add_", [&] { raw::add_(half, ones({2, 3})); });
  refuses("dropout", [&] { dropout(half, 0.5, true); });
  refuses("embedding", [&] { embedding(arange(2), half, {.max_norm = 1.0}); });
  CHECK(same_bits(half, ones({2, 3}, DType::f16)));
}

// As in PyTorch: the gradient of a tensor in f16 is one, too.
TEST_CASE("f16: gradients go through a conversion to it and back, and are rounded") {
  const Tensor x = from_vector<float>({1.0004f, -3, 70000}).requires_grad_();
  const Tensor y = to(to(x, DType::f16), DType::f32);
  CHECK(y.to_vector<float>() == std::vector<float>{1, -3, INFINITY});
  const Tensor dy = from_vector<float>({1e-12f, 2.0004f, 3});
  y.backward(dy);
  CHECK(same_bits(x.grad(), from_vector<float>({0, 2, 3})));
}

TEST_CASE("f16: an average of tensors in it is kept in f32") {
  const Tensor x = full({3}, 0.5, DType::f16);
  optim::ModelEma ema({{"x", x}}, 0.5);
  ema.update({{"x", full({3}, 0.25, DType::f16)}});
  CHECK(same_bits(ema.averages().at("x"), full({3}, 0.375)));
}
