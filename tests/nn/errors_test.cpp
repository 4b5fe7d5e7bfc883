// What is thrown at users is a quern::Error, whatever they ask for, and names who refuses.
#include <doctest/doctest.h>
#include <quern/quern.h>

using namespace quern;

namespace {

/// `ask` throws an Error whose message begins with "[".
void check_refused(const char* what, const std::function<void()>& ask) {
  CAPTURE(what);
  std::string message = "nothing";
  try {
    ask();
  } catch (const Error& error) {
    message = error.what();
  } catch (const std::exception& error) {
    message = std::string("another exception: ") + error.what();
  }
  CAPTURE(message);
  CHECK(message.starts_with("["));
}
#define REFUSED(...) check_refused(#__VA_ARGS__, [&] { (void)(__VA_ARGS__); })

}  // namespace

TEST_CASE("errors: undefined tensors") {
  const Tensor u, x = ones({2, 3}), image = ones({1, 2, 4, 4});
  Tensor v;
  REFUSED(u.shape());
  REFUSED(u.numel());
  REFUSED(u.data<float>());
  REFUSED(u.mutable_data<float>());
  REFUSED(u.item());
  REFUSED(u.to_vector<float>());
  REFUSED(u.version());
  REFUSED(u.detach());
  REFUSED(u.backward());
  REFUSED(u.register_hook([](const Tensor& g) { return g; }));
  REFUSED(v.requires_grad_());
  REFUSED(v.set_grad(ones({2})));
  REFUSED(empty_like(u));
  REFUSED(raw::clone(u));
  REFUSED(raw::copy_(x, u));
  REFUSED(raw::copy_(u, x));
  REFUSED(raw::fill_(u, 1));
  REFUSED(raw::reshape(u, {1}));
  REFUSED(uniform_(u, 0, 1));
  for (const auto op : {quern::relu, quern::sigmoid, quern::tanh, quern::gelu, quern::silu,
                        quern::neg, quern::abs, quern::exp, quern::log, quern::sqrt, quern::clone})
    REFUSED(op(u));
  REFUSED(u + u);
  REFUSED(x - u);
  REFUSED(u * 2);
  REFUSED(2 / u);
  REFUSED(quern::maximum(x, u));
  REFUSED(quern::pow(u, 2));
  REFUSED(clamp(u, 0));
  REFUSED(sum(u));
  REFUSED(mean(u, {0}));
  REFUSED(max(u, 0));
  REFUSED(argmax(u, 0));
  REFUSED(topk(u, 1));
  REFUSED(softmax(u, 0));
  REFUSED(log_softmax(u, 0));
  REFUSED(matmul(u, x));
  REFUSED(linear(x, u));
  REFUSED(conv2d(image, u));
  REFUSED(conv2d(u, image));
  REFUSED(batch_norm(u, {}, {}, {}, {}, true));
  REFUSED(layer_norm(u, {3}));
  REFUSED(max_pool2d(u, 2));
  REFUSED(avg_pool2d(u, 2));
  REFUSED(adaptive_avg_pool2d(u, 1));
  REFUSED(dropout(u));
  REFUSED(embedding(u, x));
  REFUSED(cross_entropy(u, u));
  REFUSED(nll_loss(x, u));
  REFUSED(mse_loss(x, u));
  REFUSED(cat({x, u}));
  REFUSED(stack({u, x}));
  REFUSED(pad(u, {1, 1}));
  REFUSED(slice(u, 0, 0, 1));
  REFUSED(narrow(u, 0, 0, 1));
  REFUSED(select(u, 0, 0));
  REFUSED(permute(u, {0}));
  REFUSED(transpose(u, 0, 1));
  REFUSED(reshape(u, {1}));
  REFUSED(squeeze(u, 0));
  REFUSED(unsqueeze(u, 0));
  REFUSED(flatten(u));
  REFUSED(expand(u, {1}));
  REFUSED(to(u, DType::f64));
  REFUSED(contiguous(u));
  REFUSED(conv_chain(u, {}, true));
  REFUSED(optim::clip_grad_norm_({u}, 1));
  REFUSED(TensorDict({{"a", u}}));
}

TEST_CASE("errors: indices, sizes and functions that are none") {
  const Tensor x = ones({2, 3}), image = ones({1, 2, 4, 4});
  REFUSED(x.size(2));
  REFUSED(x.stride(-3));
  REFUSED(Shape{1, 1, 1, 1, 1, 1, 1, 1, 1});
  REFUSED(raw::unsqueeze(ones({1, 1, 1, 1, 1, 1, 1, 1}), 0));
  REFUSED(zeros({-1}));
  REFUSED(full({INT64_MAX, 2}, 0));
  REFUSED(from_vector<float>({1, 2}, {3}));
  REFUSED(randint(5, 5, {2}));
  REFUSED(cat({}));
  REFUSED(stack({}));
  REFUSED(pad(x, {1}));
  REFUSED(pad(x, {1, 1, 1, 1, 1, 1}));
  REFUSED(topk(x, 4));
  REFUSED(topk(x, -1));
  REFUSED(flatten(x, 1, 0));
  REFUSED(reshape(x, {-1, -1}));
  REFUSED(permute(x, {0, 0}));
  REFUSED(sum(x, {2}));
  REFUSED(softmax(x, 2));
  REFUSED(layer_norm(x, {}));
  REFUSED(conv2d(image, ones({2, 2, 3, 3}), {}, 0));
  REFUSED(max_pool2d(image, 0));
  REFUSED(avg_pool2d(image, 9));
  REFUSED(adaptive_avg_pool2d(image, -1));
  REFUSED(embedding(from_vector<int64_t>({9}), x));
  REFUSED(cross_entropy(x, from_vector<int64_t>({0, 3})));
  REFUSED(conv_chain(image, {}, true));
  REFUSED(nn::Sequential()[0]);
  REFUSED(nn::Module()(x));
  REFUSED(nn::Embedding(3, 2)(from_vector<int64_t>({3})));
  REFUSED(nn::Embedding(3, 2, 3));
  REFUSED(nn::resnet("resnet51"));
  REFUSED(TensorDict().at("a"));
  REFUSED(TensorDict({{"a", x}, {"a", x}}));
  REFUSED(load_safetensors("/nowhere/at/all"));
  REFUSED(save_safetensors("/nowhere/at/all", {{"a", x}}));
  REFUSED(set_num_threads(0));
  REFUSED(isa_from_string("mmx"));
  REFUSED(set_float32_matmul_precision("low"));
  optim::SGD sgd({ones({2}).requires_grad_()});
  REFUSED(sgd.lr(1));
  REFUSED(sgd.set_lr(0.1, 1));
  REFUSED(sgd.load_state_dict({{"9.step", x}}));
  REFUSED(optim::AdamW({ones({2})}).lr(7));
  REFUSED(optim::warmup_then(3, {}));
  REFUSED(optim::chain({}, 3, {}));
  REFUSED(gradcheck({}, {}));
  REFUSED(ones({2}).requires_grad_().register_hook({}));
}
