// quern_op_times: quern's side of compare_ops.py, which times single ops. It answers lines of JSON:
//
//   {"op": NAME, "dtype": "f32", "format": "contiguous", "backward": false,
//    "shapes": [[64, 1000]], "low": -2, "high": 2}       makes the operands and calls the op once;
//                                                        answers the sum of magnitudes of y, with
//                                                        backward of the first operand's gradient
//    "conv": [sh, sw, ph, pw, dh, dw, groups]            of conv2d: strides, padding, dilation
//   {"seconds": 0.03}                                    answers the seconds that a call took
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "bench/peaks/clock.h"
#include "quern/autograd/grad_mode.h"
#include "quern/quern.h"
#include "quern/tensor/raw.h"

namespace quern::bench {
namespace {

using Json = nlohmann::json;
using Call = std::function<Tensor()>;
/// An op on its operands, which stay where they are.
using Op = std::function<Call(const Tensors&)>;

template <class F>
Op unary(F f) {
  return [f](const Tensors& x) -> Call { return [f, &x] { return f(x[0]); }; };
}
template <class F>
Op binary(F f) {
  return [f](const Tensors& x) -> Call { return [f, &x] { return f(x[0], x[1]); }; };
}

/// 0 ... count-1, again and again.
Tensor indices(int64_t n, int64_t count) {
  const Tensor t = empty({n}, DType::i64);
  for (int64_t i = 0; i < n; ++i) t.out<int64_t>()[i] = i % count;
  return t;
}
/// 0 ... count-1 at random, as ops.py draws them.
Tensor random_indices(int64_t n, int64_t count) {
  const Tensor t = empty({n}, DType::i64);
  uint64_t state = 1;
  for (int64_t i = 0; i < n; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    t.out<int64_t>()[i] = static_cast<int64_t>((state >> 33) % static_cast<uint64_t>(count));
  }
  return t;
}
/// Of a table and of as many rows as are looked up, one of which it changes: `result`.
Op lookup(void (*f)(const Tensor&, const Tensor&, const Tensor&), size_t result) {
  return [=](const Tensors& x) -> Call {
    return [=, &x, at = random_indices(x[1].size(0), x[0].size(0))] {
      f(x[0], at, x[1]);
      return x[result];
    };
  };
}
/// A training step of a table by as many of its rows as the second operand has: forward, backward
/// and Adam, all by the rows.
Call train_rows(const Tensors& x) {
  Tensor table = x[0];
  table.requires_grad_();
  auto optimizer = std::make_shared<optim::Adam>(Tensors{table});
  return [=, at = random_indices(x[1].size(0), table.size(0))] {
    const GradMode on(true);
    const Tensor y = embedding(at, table, {.sparse = true});
    const Tensor loss = sum(y * y);
    optimizer->zero_grad();
    loss.backward();
    optimizer->step();
    return table;
  };
}
Call batch_norm_call(const Tensors& x, bool training) {
  const Shape channels{x[0].size(1)};
  return [&x, training, mean = zeros(channels), var = full(channels, 1)] {
    return batch_norm(x[0], mean, var, x[1], x[2], training);
  };
}

Call conv_call(const Tensors& x, const std::vector<int64_t>& g) {
  return [&x, g] { return conv2d(x[0], x[1], {}, {g[0], g[1]}, {g[2], g[3]}, {g[4], g[5]}, g[6]); };
}

const std::map<std::string, Op> kOps{
    {"neg", unary(neg)},
    {"abs", unary(abs)},
    {"exp", unary(exp)},
    {"log", unary(log)},
    {"sqrt", unary(sqrt)},
    {"relu", unary(relu)},
    {"sigmoid", unary(sigmoid)},
    {"tanh", unary(tanh)},
    {"gelu", unary(gelu)},
    {"silu", unary(silu)},
    {"relu6", unary(relu6)},
    {"hardswish", unary(hardswish)},
    {"hardsigmoid", unary(hardsigmoid)},
    {"leaky_relu", unary([](const Tensor& x) { return leaky_relu(x); })},
    {"clamp", unary([](const Tensor& x) { return clamp(x, -0.5, 0.5); })},
    {"add", binary([](const Tensor& a, const Tensor& b) { return a + b; })},
    {"sub", binary([](const Tensor& a, const Tensor& b) { return a - b; })},
    {"mul", binary([](const Tensor& a, const Tensor& b) { return a * b; })},
    {"div", binary([](const Tensor& a, const Tensor& b) { return a / b; })},
    {"maximum", binary(maximum)},
    {"minimum", binary(minimum)},
    {"eq", binary([](const Tensor& a, const Tensor& b) { return eq(a, b); })},
    {"lt", binary([](const Tensor& a, const Tensor& b) { return lt(a, b); })},
    {"where",
     [](const Tensors& x) -> Call { return [&x] { return where(gt(x[2], 0), x[0], x[1]); }; }},
    {"pow", binary([](const Tensor& a, const Tensor& b) { return pow(a, b); })},
    {"add_number", unary([](const Tensor& x) { return x + 1.5; })},
    {"mul_number", unary([](const Tensor& x) { return x * 1.5; })},
    {"div_by", unary([](const Tensor& x) { return 1.5 / x; })},
    {"pow_2", unary([](const Tensor& x) { return pow(x, 2); })},
    {"pow_3", unary([](const Tensor& x) { return pow(x, 3); })},
    {"pow_-0.5", unary([](const Tensor& x) { return pow(x, -0.5); })},
    {"pow_1.7", unary([](const Tensor& x) { return pow(x, 1.7); })},
    {"sum", unary([](const Tensor& x) { return sum(x); })},
    {"sum_first", unary([](const Tensor& x) { return sum(x, {0}); })},
    {"sum_last", unary([](const Tensor& x) { return sum(x, {-1}); })},
    {"mean_1", unary([](const Tensor& x) { return mean(x, {1}); })},
    {"max_first", unary([](const Tensor& x) { return max(x, 0).values; })},
    {"max_last", unary([](const Tensor& x) { return max(x, -1).values; })},
    {"argmax_1", unary([](const Tensor& x) { return argmax(x, 1); })},
    {"topk", unary([](const Tensor& x) { return topk(x, 5).values; })},
    {"softmax_first", unary([](const Tensor& x) { return softmax(x, 0); })},
    {"softmax_1", unary([](const Tensor& x) { return softmax(x, 1); })},
    {"softmax_last", unary([](const Tensor& x) { return softmax(x, -1); })},
    {"log_softmax_1", unary([](const Tensor& x) { return log_softmax(x, 1); })},
    {"log_softmax_last", unary([](const Tensor& x) { return log_softmax(x, -1); })},
    {"matmul", binary(matmul)},
    {"linear", [](const Tensors& x) -> Call { return [&x] { return linear(x[0], x[1], x[2]); }; }},
    {"batch_norm", [](const Tensors& x) { return batch_norm_call(x, true); }},
    {"batch_norm_eval", [](const Tensors& x) { return batch_norm_call(x, false); }},
    {"layer_norm",
     [](const Tensors& x) -> Call {
       return [&x] { return layer_norm(x[0], x[1].shape(), x[1], x[2]); };
     }},
    {"max_pool2d", unary([](const Tensor& x) { return max_pool2d(x, 3, 2, 1); })},
    {"avg_pool2d", unary([](const Tensor& x) { return avg_pool2d(x, 2); })},
    {"global_avg_pool2d", unary([](const Tensor& x) { return adaptive_avg_pool2d(x, 1); })},
    {"adaptive_avg_pool2d", unary([](const Tensor& x) { return adaptive_avg_pool2d(x, 7); })},
    {"mse_loss", binary([](const Tensor& a, const Tensor& b) { return mse_loss(a, b); })},
    {"cross_entropy",
     [](const Tensors& x) -> Call {
       return [&x, t = indices(x[0].size(0), x[0].size(1))] { return cross_entropy(x[0], t); };
     }},
    {"nll_loss",
     [](const Tensors& x) -> Call {
       return [&x, t = indices(x[0].size(0), x[0].size(1))] { return nll_loss(x[0], t); };
     }},
    {"embedding",
     [](const Tensors& x) -> Call {
       const int64_t rows = x[0].size(0);
       return [&x, at = indices(rows / 2, std::max<int64_t>(1, rows / 3))] {
         return embedding(at, x[0]);
       };
     }},
    {"gather_rows", lookup(gather_rows, 1)},
    {"scatter_rows", lookup(scatter_rows, 0)},
    {"scatter_add_rows", lookup(scatter_add_rows, 0)},
    {"train_rows", train_rows},
    {"dropout", unary([](const Tensor& x) { return dropout(x); })},
    {"cat_first", binary([](const Tensor& a, const Tensor& b) {
       return cat({a, b}, 0);
     })},
    {"cat_1", binary([](const Tensor& a, const Tensor& b) {
       return cat({a, b}, 1);
     })},
    {"pad", unary([](const Tensor& x) {
       return pad(x, {1, 1, 1, 1});
     })},
    {"clone", unary(clone)},
    {"to_bf16", unary([](const Tensor& x) { return to(x, DType::bf16); })},
    {"to_f32", unary([](const Tensor& x) { return to(x, DType::f32); })},
    {"transpose", unary([](const Tensor& x) { return contiguous(transpose(x, -2, -1)); })},
    {"to_nhwc", unary([](const Tensor& x) { return contiguous(x, MemoryFormat::channels_last); })},
    {"slice", unary([](const Tensor& x) { return contiguous(slice(x, -1, 1, -1)); })},
};

/// In parts: a table may take most of the memory.
double magnitude(const Tensor& t) {
  constexpr int64_t kPart = 1 << 24;
  double sum = 0;
  if (t.dim() > 0 && t.size(0) > 1 && t.numel() > kPart) {
    const int64_t part = std::max<int64_t>(1, kPart / (t.numel() / t.size(0)));
    for (int64_t i = 0; i < t.size(0); i += part)
      sum += magnitude(raw::slice(t, 0, i, std::min(t.size(0), i + part)));
    return sum;
  }
  for (double v : t.to_vector<double>()) sum += std::abs(v);
  return sum;
}

/// Numbers in low..high, the same as ops.py makes.
Tensor made(const Shape& shape, DType dtype, double low, double high, double seed) {
  const Tensor t = empty(shape, DType::f32);
  for (int64_t i = 0; i < t.numel(); ++i)
    t.out<float>()[i] = static_cast<float>(
        low + (high - low) * std::fmod(seed + 0.7548776662466927 * static_cast<double>(i), 1));
  return dtype == DType::f32 ? t : raw::to(t, dtype);
}

/// An op with operands of its own.
class Job {
 public:
  explicit Job(const Json& job) : backward_(job.at("backward")) {
    const DType dtype = job.at("dtype") == "bf16" ? DType::bf16 : DType::f32;
    const double low = job.at("low"), high = job.at("high");
    double seed = 0;
    for (const auto& sizes : job.at("shapes")) {
      Tensor x = made(Shape(sizes.get<std::vector<int64_t>>()), dtype, low, high, seed);
      seed += 0.3;
      if (x.dim() == 4 && job.at("format") == "channels_last")
        x = raw::contiguous(x, MemoryFormat::channels_last);
      x_.push_back(x);
    }
    if (backward_)
      for (Tensor& x : x_) x.requires_grad_();
    call_ = job.contains("conv") ? conv_call(x_, job.at("conv")) : kOps.at(job.at("op"))(x_);
    const GradMode mode(backward_);
    const Tensor y = call_();
    if (backward_) dy_ = raw::contiguous(made(y.shape(), y.dtype(), 0.5, 1.5, 0.7), y.format());
  }
  double result() {
    if (!backward_) return magnitude(run());
    run();
    return magnitude(x_[0].grad());
  }
  double seconds_a_call(double seconds) {
    int64_t calls = 0;
    const double begin = seconds_on(CLOCK_MONOTONIC);
    double now = begin;
    for (int64_t burst = 1; now < begin + seconds; burst = std::min<int64_t>(2 * burst, 64)) {
      for (int64_t i = 0; i < burst; ++i) run();
      calls += burst;
      now = seconds_on(CLOCK_MONOTONIC);
    }
    return (now - begin) / static_cast<double>(calls);
  }

 private:
  Tensor run() {
    const GradMode mode(backward_);
    Tensor y = call_();
    if (!backward_) return y;
    for (Tensor& x : x_) x.set_grad({});
    y.backward(dy_);
    return y;
  }

  bool backward_;
  Tensors x_;
  Call call_;
  Tensor dy_;
};

void serve() {
  std::unique_ptr<Job> job;
  for (std::string line; std::getline(std::cin, line);) {
    const Json question = Json::parse(line);
    double answer;
    if (job && question.contains("seconds")) {
      answer = job->seconds_a_call(question.at("seconds"));
    } else {
      job.reset();
      job = std::make_unique<Job>(question);
      answer = job->result();
    }
    fmt::print("{}\n", answer);
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace quern::bench

int main() {
  try {
    quern::bench::serve();
  } catch (const std::exception& error) {
    fmt::print(stderr, "quern_op_times: error: {}\n", error.what());
    return 2;
  }
}
