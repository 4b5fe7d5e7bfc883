#include <doctest/doctest.h>

#include <cmath>
#include <cstring>

#include "gradcheck_helper.h"
#include "quern/nn/nn.h"
#include "quern/ops/activation.h"
#include "quern/ops/conv2d.h"
#include "quern/ops/softmax.h"
#include "quern/optim/sgd.h"

using namespace quern;

namespace {

using Strings = std::vector<std::string>;

Strings state_names(const nn::Module& module) {
  Strings names;
  for (const auto& [name, tensor] : module.state_dict()) names.push_back(name);
  return names;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && a.to_vector<float>() == b.to_vector<float>();
}

}  // namespace

TEST_CASE("Conv2d: shapes, options and format reach the op") {
  nn::Conv2d conv(4, 6, {3, 2}, {.stride = {2, 1}, .padding = 1, .dilation = {1, 2}, .groups = 2});
  CHECK(conv.weight.shape() == Shape{6, 2, 3, 2});
  CHECK(state_names(conv) == Strings{"weight", "bias"});
  Tensor x = test::random({2, 4, 7, 8}, 1, DType::f32, MemoryFormat::channels_last);
  Tensor y = conv(x);
  CHECK(y.shape() == Shape{2, 6, 4, 8});
  CHECK(y.format() == MemoryFormat::channels_last);
  CHECK(same_bits(y, conv2d(x, conv.weight, conv.bias, {2, 1}, 1, {1, 2}, 2)));
  CHECK(y.requires_grad());

  CHECK(state_names(nn::Conv2d(4, 6, 3, {.bias = false})) == Strings{"weight"});
  CHECK_THROWS_WITH_AS(nn::Conv2d(4, 6, 3, {.groups = 4}),
                       "[Conv2d] groups: expected a divisor of 4 and 6 channels, got 4", Error);
  CHECK_THROWS_AS(nn::Conv2d(4, 6, 3, {.groups = 0}), Error);
  CHECK_THROWS_AS(nn::Conv2d(0, 6, 3), Error);
  CHECK_THROWS_AS(nn::Conv2d(4, 6, {3, 0}), Error);
}

TEST_CASE("Linear") {
  nn::Linear linear(3, 2);
  CHECK(state_names(linear) == Strings{"weight", "bias"});
  raw::copy_(linear.weight, from_vector<float>({1, 2, 3, -1, 0, 1}, {2, 3}));
  raw::copy_(linear.bias, from_vector<float>({10, 20}));
  Tensor y = linear(from_vector<float>({1, 1, 1, 2, 0, 1}, {2, 1, 3}));
  CHECK(y.shape() == Shape{2, 1, 2});
  CHECK(y.to_vector<int>() == std::vector{16, 20, 15, 19});
  CHECK(state_names(nn::Linear(3, 2, false)) == Strings{"weight"});
  CHECK_THROWS_AS(nn::Linear(0, 2), Error);
}

TEST_CASE("BatchNorm2d: the batch's statistics in training, the running ones in inference") {
  nn::BatchNorm2d norm(2, 1e-5, 0.25);
  CHECK(state_names(norm) ==
        Strings{"weight", "bias", "running_mean", "running_var", "num_batches_tracked"});
  CHECK(norm.num_batches_tracked.dtype() == DType::i64);

  // Channel 0 holds 0, 2, 4, 6: mean 3, variance 5, unbiased 20/3. Channel 1 holds 1 and 5, twice.
  Tensor x = from_vector<float>({0, 2, 1, 5, 4, 6, 5, 1}, {2, 2, 1, 2});
  Tensor y = norm(x);
  const float invstd = 1 / std::sqrt(5.0f + 1e-5f);
  auto values = y.to_vector<float>();
  for (auto [i, expected] : {std::pair{0, -3.0f}, {1, -1.0f}, {4, 1.0f}, {5, 3.0f}})
    CHECK(values[static_cast<size_t>(i)] == doctest::Approx(expected * invstd).epsilon(4e-7));
  CHECK(norm.num_batches_tracked.item<int64_t>() == 1);
  CHECK(norm.running_mean.to_vector<float>() == std::vector{0.75f, 0.75f});
  CHECK(norm.running_var.data<float>()[0] == doctest::Approx(0.75 + 0.25 * 20 / 3).epsilon(4e-7));

  norm.eval();
  Tensor mean = raw::clone(norm.running_mean);
  y = norm(x);
  CHECK(norm.num_batches_tracked.item<int64_t>() == 1);
  CHECK(same_bits(norm.running_mean, mean));
  CHECK(y.to_vector<float>()[0] ==
        doctest::Approx(-0.75 / std::sqrt(0.75 + 0.25 * 20 / 3 + 1e-5)).epsilon(4e-7));

  CHECK_THROWS_WITH_AS(norm(ones({2, 2})), "[BatchNorm2d] input: expected [N,2,H,W], got f32 [2,2]",
                       Error);
  CHECK_THROWS_AS(norm(ones({2, 3, 1, 1})), Error);
  CHECK_THROWS_AS(norm({}), Error);
  CHECK_THROWS_AS(nn::BatchNorm2d(0), Error);
  norm.train();
  CHECK_THROWS_AS(norm(ones({2, 3, 1, 1})), Error);
  CHECK(norm.num_batches_tracked.item<int64_t>() == 1);
}

TEST_CASE("LayerNorm") {
  nn::LayerNorm norm({2, 2});
  CHECK(state_names(norm) == Strings{"weight", "bias"});
  CHECK(norm.weight.shape() == Shape{2, 2});
  raw::fill_(norm.bias, 10);
  auto y = norm(from_vector<float>({0, 2, 4, 6}, {1, 2, 2})).to_vector<float>();
  CHECK(y[0] == doctest::Approx(10 - 3 / std::sqrt(5 + 1e-5)).epsilon(4e-7));
  CHECK_THROWS_AS(nn::LayerNorm(Shape{}), Error);
  CHECK_THROWS_AS(nn::LayerNorm({0}), Error);
}

TEST_CASE("pools") {
  Tensor x = from_vector<float>({1, 2, 3, 4, 5, 6, 7, 8, 9}, {1, 1, 3, 3});
  CHECK(nn::MaxPool2d(2)(x).to_vector<int>() == std::vector{5});
  CHECK(nn::MaxPool2d(2, {.stride = 1})(x).to_vector<int>() == std::vector{5, 6, 8, 9});
  CHECK(nn::MaxPool2d(2, {.ceil_mode = true})(x).to_vector<int>() == std::vector{5, 6, 8, 9});
  CHECK(nn::MaxPool2d(3, {.stride = 2, .padding = 1})(x).to_vector<int>() ==
        std::vector{5, 6, 8, 9});
  CHECK(nn::MaxPool2d(2, {.stride = 1, .dilation = 2})(x).to_vector<int>() == std::vector{9});
  CHECK(nn::AvgPool2d(2, {.stride = 1})(x).to_vector<int>() == std::vector{3, 4, 6, 7});
  CHECK(nn::AvgPool2d({3, 1})(x).to_vector<int>() == std::vector{4, 5, 6});
  Tensor padded = nn::AvgPool2d(2, {.stride = 3, .padding = 1})(x);
  CHECK(padded.to_vector<float>() == std::vector{0.25f, 0.75f, 1.75f, 2.25f});
  padded = nn::AvgPool2d(2, {.stride = 3, .padding = 1, .count_include_pad = false})(x);
  CHECK(padded.to_vector<int>() == std::vector{1, 3, 7, 9});
  CHECK(nn::AdaptiveAvgPool2d(1)(x).to_vector<int>() == std::vector{5});
  CHECK(nn::AdaptiveAvgPool2d({3, 2})(x).shape() == Shape{1, 1, 3, 2});
}

TEST_CASE("ReLU, Flatten and Dropout") {
  Tensor x = from_vector<float>({-1, 2, -3, 4}, {1, 2, 1, 2});
  CHECK(nn::ReLU()(x).to_vector<int>() == std::vector{0, 2, 0, 4});
  CHECK(nn::Flatten()(x).shape() == Shape{1, 4});
  CHECK(nn::Flatten(0, 1)(x).shape() == Shape{2, 1, 2});

  nn::Dropout dropout(0.25);
  Tensor many = ones({10000});
  auto values = dropout(many).to_vector<float>();
  int kept = 0;
  for (float v : values) {
    CHECK((v == 0 || v == 1 / 0.75f));
    kept += v != 0;
  }
  CHECK(std::abs(kept - 7500) < 5 * std::sqrt(10000 * 0.25 * 0.75));  // five deviations
  dropout.eval();
  CHECK(same_bits(dropout(many), many));
  CHECK_THROWS_WITH_AS(nn::Dropout(1.5), "[Dropout] p: expected 0 to 1, got 1.5", Error);
}

TEST_CASE("activations are those of ops") {
  const Tensor x = test::random({2, 3, 2, 2}, 1, DType::f32, MemoryFormat::channels_last, -3, 3);
  CHECK(same_bits(nn::GELU()(x), gelu(x)));
  CHECK(same_bits(nn::SiLU()(x), silu(x)));
  CHECK(same_bits(nn::Sigmoid()(x), sigmoid(x)));
  CHECK(same_bits(nn::Tanh()(x), tanh(x)));
  for (const int64_t dim : {0, 1, -1}) {
    CHECK(same_bits(nn::Softmax(dim)(x), softmax(x, dim)));
    CHECK(same_bits(nn::LogSoftmax(dim)(x), log_softmax(x, dim)));
  }
  CHECK_THROWS_WITH_AS(nn::Softmax(4)(x), "[softmax] dim: expected -4..3, got 4", Error);
  CHECK_THROWS_AS(nn::LogSoftmax(-5)(x), Error);

  nn::Sequential net(nn::Linear(4, 3), nn::GELU(), nn::SiLU(), nn::Sigmoid(), nn::Tanh(),
                     nn::LogSoftmax(1), nn::Softmax(1));
  CHECK(state_names(net) == Strings{"0.weight", "0.bias"});
  CHECK(net(ones({2, 4})).shape() == Shape{2, 3});
}

TEST_CASE("Embedding") {
  nn::Embedding table(5, 3);
  Tensor y = table(from_vector<int64_t>({4, 0, 4, 1}, {2, 2}));
  CHECK(y.shape() == Shape{2, 2, 3});
  CHECK(same_bits(raw::select(raw::select(y, 0, 1), 0, 0), raw::select(table.weight, 0, 4)));
  CHECK_THROWS_AS(table(from_vector<int64_t>({5})), Error);
  CHECK_THROWS_AS(nn::Embedding(0, 3), Error);
}

TEST_CASE("Embedding: the padding row starts as zeros and stays") {
  for (const int64_t padding : {2, -3}) {  // the same of five
    CAPTURE(padding);
    nn::Embedding table(5, 3, padding);
    CHECK(raw::select(table.weight, 0, 2).to_vector<float>() == std::vector<float>(3, 0));
    CHECK(raw::select(table.weight, 0, 3).to_vector<float>() != std::vector<float>(3, 0));
    const Tensor before = raw::clone(table.weight);
    const Tensor y = table(from_vector<int64_t>({2, 4, 4, 2}));
    CHECK(same_bits(raw::select(y, 0, 0), zeros({3})));
    y.backward(ones({4, 3}));
    CHECK(table.weight.grad().to_vector<int>() ==
          std::vector{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 2, 2});
    optim::SGD(table.parameters(), {.lr = 1}).step();
    CHECK(same_bits(raw::slice(table.weight, 0, 0, 4), raw::slice(before, 0, 0, 4)));
    CHECK_FALSE(same_bits(table.weight, before));
  }
  // A row that was loaded is taken as it is, and still gets no gradient.
  nn::Embedding table(2, 1, 1);
  table.load_state_dict({{"weight", from_vector<float>({3, 5}, {2, 1})}});
  const Tensor y = table(from_vector<int64_t>({1, 0}));
  CHECK(y.to_vector<int>() == std::vector{5, 3});
  y.backward(ones({2, 1}));
  CHECK(table.weight.grad().to_vector<int>() == std::vector{1, 0});

  CHECK_THROWS_WITH_AS(table(from_vector<int64_t>({0, 2})),
                       "[embedding] indices: expected 0..1, got 2 as element 1", Error);
  CHECK_THROWS_WITH_AS(nn::Embedding(5, 3, 5), "[Embedding] padding_idx: expected -5..4, got 5",
                       Error);
  CHECK_THROWS_AS(nn::Embedding(5, 3, -6), Error);

  nn::Embedding rows(6, 2, {.padding_idx = -1, .max_norm = 1, .sparse = true});
  CHECK(rows.weight.to_vector<float>()[10] == 0);
  raw::fill_(raw::slice(rows.weight, 0, 0, 5), 3);
  rows(from_vector<int64_t>({4, 5, 2, 4})).backward(ones({4, 2}));
  CHECK(rows.weight.grad().is_sparse());
  CHECK(rows.weight.grad().rows().to_vector<int>() == std::vector{2, 4});
  CHECK(rows.weight.grad().values().to_vector<int>() == std::vector{1, 1, 2, 2});
  CHECK(rows.weight.to_vector<double>()[0] == 3);
  CHECK(rows.weight.to_vector<double>()[4] == doctest::Approx(std::sqrt(0.5)).epsilon(1e-6));
}

TEST_CASE("EmbeddingBag") {
  nn::EmbeddingBag table(3, 2, {.mode = BagMode::sum, .padding_idx = 1});
  CHECK(state_names(table) == Strings{"weight"});
  CHECK(table.weight.to_vector<float>()[2] == 0);
  raw::copy_(table.weight, from_vector<float>({1, 2, 3, 4, 5, 6}, {3, 2}));
  const Tensor indices = from_vector<int64_t>({0, 1, 2, 2}), offsets = from_vector<int64_t>({0, 3});
  CHECK(table(indices, offsets).to_vector<int>() == std::vector{6, 8, 5, 6});
  CHECK(table(indices, offsets, from_vector<float>({2, 9, 1, 3})).to_vector<int>() ==
        std::vector{7, 10, 15, 18});
  CHECK(table(raw::reshape(indices, {2, 2})).to_vector<int>() == std::vector{1, 2, 10, 12});
  CHECK_THROWS_WITH_AS(nn::EmbeddingBag(5, 3, {.padding_idx = 5}),
                       "[EmbeddingBag] padding_idx: expected -5..4, got 5", Error);
  CHECK_THROWS_AS(nn::EmbeddingBag(0, 3), Error);
}

TEST_CASE("CrossEntropyLoss") {
  Tensor logits = zeros({2, 4});
  Tensor target = from_vector<int64_t>({3, 0});
  CHECK(nn::CrossEntropyLoss()(logits, target).item() ==
        doctest::Approx(std::log(4)).epsilon(4e-7));

  // Logits ln(3), 0, 0, 0: probabilities 1/2, 1/6, 1/6, 1/6.
  raw::fill_(raw::slice(logits, 1, 0, 1), std::log(3));
  double smoothed = 0.8 * std::log(2) + 0.2 * (std::log(2) + 3 * std::log(6)) / 4;
  nn::CrossEntropyLoss loss{.label_smoothing = 0.2, .ignore_index = 3};
  CHECK(loss(logits, target).item() == doctest::Approx(smoothed).epsilon(4e-7));
}

TEST_CASE("Sequential: names, order, access") {
  nn::Sequential net(nn::Linear(3, 4), nn::ReLU(), nn::Linear(4, 2, false));
  CHECK(state_names(net) == Strings{"0.weight", "0.bias", "2.weight"});
  CHECK(net.size() == 3);
  Tensor x = test::random({5, 3}, 1, DType::f32);
  CHECK(same_bits(net(x), net[2](net[1](net[0](x)))));
  nn::Linear& last = net.add(nn::Linear(2, 7));
  CHECK(state_names(net).back() == "3.bias");
  CHECK(net(x).shape() == Shape{5, 7});
  CHECK(&net[3] == &last);
  nn::Sequential moved = std::move(net);
  CHECK(moved(x).shape() == Shape{5, 7});
  CHECK_THROWS_WITH_AS(moved[4], "[Sequential] index: expected less than 4, got 4", Error);
  CHECK_THROWS_AS(nn::Sequential()[0], Error);
}
