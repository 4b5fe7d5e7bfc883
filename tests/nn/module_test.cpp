#include "quern/nn/module.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "quern/tensor/raw.h"

using namespace quern;

namespace {

struct Leaf : nn::Module {
  Tensor weight = register_parameter("weight", ones({2, 3}));
  Tensor bias;
  Tensor mean = register_buffer("mean", zeros({3}));
  Tensor steps = register_buffer("steps", zeros({}, DType::i64));

  explicit Leaf(bool with_bias = true)
      : bias(register_parameter("bias", with_bias ? ones({2}) : Tensor())) {}
};

struct Pair : nn::Module {
  Leaf& first = register_module("first", Leaf());
  Leaf& second = register_module("second", Leaf(false));
  Tensor scale = register_parameter("scale", ones({}));
};

std::vector<std::string> names(const TensorDict& dict) {
  std::vector<std::string> result;
  for (const auto& [name, tensor] : dict) result.push_back(name);
  return result;
}

/// Gives access to what a module's author uses.
struct Open : nn::Module {
  using Module::register_buffer;
  using Module::register_module;
  using Module::register_parameter;
};

using Strings = std::vector<std::string>;

}  // namespace

TEST_CASE("module: names, in PyTorch's order") {
  Pair pair;
  CHECK(names(pair.named_parameters()) ==
        Strings{"scale", "first.weight", "first.bias", "second.weight"});
  CHECK(names(pair.named_buffers()) ==
        Strings{"first.mean", "first.steps", "second.mean", "second.steps"});
  CHECK(names(pair.state_dict()) == Strings{"scale", "first.weight", "first.bias", "first.mean",
                                            "first.steps", "second.weight", "second.mean",
                                            "second.steps"});
  Strings modules;
  for (auto& [name, module] : pair.named_modules()) modules.push_back(name);
  CHECK(modules == Strings{"", "first", "second"});
  CHECK(pair.named_modules()[2].second == &pair.second);
  CHECK(pair.parameters().size() == 4);
  CHECK(pair.parameter_bytes() == 4 + (24 + 8) + 24);
  for (const Tensor& p : pair.parameters()) CHECK(p.requires_grad());
  for (const auto& [name, b] : pair.named_buffers()) CHECK(!b.requires_grad());
}

TEST_CASE("module: moves keep children in place, and copies are refused") {
  static_assert(!std::is_copy_constructible_v<Pair> && !std::is_copy_assignable_v<Pair>);
  Pair pair;
  Leaf* first = &pair.first;
  Pair moved = std::move(pair);
  CHECK(&moved.first == first);
  CHECK(moved.named_modules()[1].second == first);
  CHECK(moved.named_parameters().at("scale").is_same(moved.scale));
}

TEST_CASE("module: a child or a tensor that is shared is listed once, but saved under each name") {
  Open open;
  auto leaf = std::make_shared<Leaf>();
  Tensor tied = leaf->weight;
  open.register_parameter("tied", tied);
  open.register_module("a", leaf);
  open.register_module("b", leaf);
  CHECK(open.named_modules().size() == 2);
  CHECK(names(open.named_parameters()) == Strings{"tied", "a.bias"});
  CHECK(open.state_dict().size() == 9);
}

TEST_CASE("module: bad names") {
  Open open;
  open.register_parameter("w", ones({1}));
  CHECK_THROWS_WITH_AS(open.register_buffer("w", ones({1})),
                       "[register_buffer] name: expected a new one, got \"w\" again", Error);
  CHECK_THROWS_WITH_AS(open.register_module("w", Leaf()),
                       "[register_module] name: expected a new one, got \"w\" again", Error);
  CHECK_THROWS_WITH_AS(
      open.register_parameter("a.b", ones({1})),
      "[register_parameter] name: expected one that is not empty and has no dot, got \"a.b\"",
      Error);
  CHECK_THROWS_AS(open.register_parameter("", ones({1})), Error);
  CHECK_THROWS_WITH_AS(open.register_module("none", std::shared_ptr<Leaf>()),
                       "[register_module] none: expected a module, got null", Error);
  CHECK_THROWS_AS(open.register_parameter("i", zeros({1}, DType::i64)), Error);
  CHECK(open.state_dict().size() == 1);
  CHECK_THROWS_WITH_AS(open(ones({1})),
                       "[module] forward: expected an override that takes one tensor, got none",
                       Error);
}

TEST_CASE("module: train and eval reach every module") {
  Pair pair;
  CHECK(pair.second.is_training());
  pair.eval();
  CHECK(!pair.is_training());
  CHECK(!pair.second.is_training());
  pair.train();
  CHECK(pair.first.is_training());
}

TEST_CASE("module: zero_grad and requires_grad_ reach every parameter") {
  Pair pair;
  for (Tensor& p : pair.parameters()) p.set_grad(ones_like(p));
  pair.zero_grad();
  for (const Tensor& p : pair.parameters()) CHECK(!p.grad().defined());
  pair.requires_grad_(false);
  for (const Tensor& p : pair.parameters()) CHECK(!p.requires_grad());
}

TEST_CASE("state_dict shares storage and has no history") {
  Pair pair;
  TensorDict state = pair.state_dict();
  CHECK(state.at("scale").storage() == pair.scale.storage());
  CHECK(!state.at("scale").requires_grad());
}

TEST_CASE("load_state_dict copies, and converts within kinds") {
  Pair pair;
  TensorDict dict;
  for (const auto& [name, tensor] : pair.state_dict())
    dict.insert(name,
                full(tensor.shape(), 2.5, is_floating(tensor.dtype()) ? DType::bf16 : DType::i32));
  uint64_t version = pair.first.weight.version();
  auto result = pair.load_state_dict(dict);
  CHECK(result.missing.empty());
  CHECK(result.unexpected.empty());
  CHECK(pair.first.weight.to_vector<float>() == std::vector<float>(6, 2.5f));
  CHECK(pair.second.steps.item<int>() == 2);
  CHECK(pair.first.weight.dtype() == DType::f32);
  CHECK(pair.first.weight.requires_grad());
  CHECK(pair.first.weight.version() > version);
}

TEST_CASE("load_state_dict takes the module's own tensors as they were") {
  Pair pair;
  raw::fill_(pair.first.mean, 5);
  TensorDict swapped;
  for (const auto& [name, tensor] : pair.state_dict())
    swapped.insert(name, name == "first.mean"    ? pair.second.mean
                         : name == "second.mean" ? pair.first.mean
                                                 : tensor);
  pair.load_state_dict(swapped);
  CHECK(pair.first.mean.to_vector<float>() == std::vector<float>(3, 0));
  CHECK(pair.second.mean.to_vector<float>() == std::vector<float>(3, 5));
}

TEST_CASE("load_state_dict says all that is wrong and changes nothing") {
  Pair pair;
  TensorDict dict;
  for (const auto& [name, tensor] : pair.state_dict()) {
    if (name == "first.bias") continue;
    if (name == "second.weight") dict.insert(name, full({3, 2}, 9));
    else if (name == "second.steps") dict.insert(name, full({}, 9));
    else dict.insert(name, full(tensor.shape(), 9, tensor.dtype()));
  }
  dict.insert("extra", ones({1}));
  std::string mismatched =
      "mismatched: second.weight (expected f32 [2,3], got f32 [3,2]), second.steps (expected i64 "
      "[], got f32 [])";
  auto expect_unchanged = [&] {
    for (const auto& [name, parameter] : pair.named_parameters())
      for (float value : parameter.to_vector<float>()) CHECK(value == 1);
    for (const auto& [name, buffer] : pair.named_buffers())
      for (float value : buffer.to_vector<float>()) CHECK(value == 0);
  };
  CHECK_THROWS_WITH_AS(pair.load_state_dict(dict),
                       ("[load_state_dict] dict: expected the 8 tensors of the module, got "
                        "missing: first.bias; unexpected: extra; " +
                        mismatched)
                           .c_str(),
                       Error);
  expect_unchanged();
  CHECK_THROWS_WITH_AS(
      pair.load_state_dict(dict, false),
      ("[load_state_dict] dict: expected the 8 tensors of the module, got " + mismatched).c_str(),
      Error);
  expect_unchanged();

  auto result =
      pair.load_state_dict({{"scale", full({}, 3)}, {"extra", ones({1})}}, /*strict=*/false);
  CHECK(result.missing.size() == 7);
  CHECK(result.unexpected == Strings{"extra"});
  CHECK(pair.scale.item() == 3);
}

TEST_CASE("tensor_dict") {
  TensorDict dict = {{"b", ones({1})}, {"a", zeros({2})}};
  CHECK(names(dict) == Strings{"b", "a"});
  CHECK(dict.at("a").numel() == 2);
  CHECK(dict.find("c") == nullptr);
  CHECK_THROWS_WITH_AS(dict.at("c"), "[tensor_dict] name: expected one of 2 tensors, got \"c\"",
                       Error);
  CHECK_THROWS_WITH_AS(dict.insert("a", ones({1})),
                       "[tensor_dict] name: expected a new one, got \"a\" again", Error);
  CHECK_THROWS_WITH_AS(dict.insert("d", {}),
                       "[tensor_dict] d: expected a tensor, got an undefined one", Error);
  CHECK(dict.size() == 2);
}
