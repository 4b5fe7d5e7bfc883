// What graphs are drawn from.
#include <algorithm>

#include "gradcheck_helper.h"
#include "noise.h"
#include "program.h"
#include "quern/autograd/node.h"
#include "quern/ops/activation.h"
#include "quern/ops/adaptive_avg_pool2d.h"
#include "quern/ops/avg_pool2d.h"
#include "quern/ops/batch_norm.h"
#include "quern/ops/binary.h"
#include "quern/ops/cat.h"
#include "quern/ops/conv2d.h"
#include "quern/ops/convert.h"
#include "quern/ops/embedding.h"
#include "quern/ops/expand.h"
#include "quern/ops/layer_norm.h"
#include "quern/ops/linear.h"
#include "quern/ops/loss.h"
#include "quern/ops/matmul.h"
#include "quern/ops/max.h"
#include "quern/ops/max_pool2d.h"
#include "quern/ops/pad.h"
#include "quern/ops/permute.h"
#include "quern/ops/reshape.h"
#include "quern/ops/slice.h"
#include "quern/ops/softmax.h"
#include "quern/ops/sum.h"
#include "quern/ops/topk.h"
#include "quern/ops/unary.h"

namespace quern::soak {
namespace {

template <class F>
struct Named {
  const char* name;
  F f;
};

double smallest(const Tensor& t) {
  double least = INFINITY;
  for (const double element : t.to_vector<double>()) least = std::min(least, element);
  return least;
}

/// y = f(x), whose gradient is computed from y, as that was stored.
Tensor by_output(const Tensor& x, const Tensor& y,
                 std::function<Tensor(const Tensor& y, const Tensor& dy)> backward) {
  return record("by_output", raw::clone(y), {x}, [=](const Tensor& dy, Needs) -> Tensors {
    return {backward(noise(y), noise(dy))};
  });
}

void unary(Drawing& d) {
  using F = Tensor (*)(const Tensor&);
  using Backward = Tensor (*)(const Tensor& y, const Tensor& dy);
  struct Function {
    const char* name;
    F f;
    Backward by_output = nullptr;
  };
  static constexpr Function kAll[] = {
      {"exp", exp, [](const Tensor& y, const Tensor& dy) { return y * dy; }},
      {"sqrt", sqrt, [](const Tensor& y, const Tensor& dy) { return dy / (2.0 * y); }},
      {"sigmoid", sigmoid, [](const Tensor& y, const Tensor& dy) { return dy * (y * (1.0 - y)); }},
      {"tanh", tanh, [](const Tensor& y, const Tensor& dy) { return dy * (1.0 - y * y); }},
      {"silu", silu},
      {"gelu", gelu},
      {"log", log}};
  const Function function = kAll[d.dice(0, 6)];
  const std::string_view name = function.name;
  size_t x = d.any();
  if (name == "log" || name == "sqrt") x = d.positive(x);
  // Far to the left Φ comes out of a cancellation, with an error that x alone tells nothing of.
  if (name == "gelu") check(smallest(d.at(x)) > -2, "soak", "too small");
  Node node{.text = function.name, .inputs = {x}, .apply = [=](const Tensors& t) {
              return function.f(t[0]);
            }};
  if (function.by_output)
    node.definition = [=](const Tensors& t) {
      return by_output(t[0], function.f(t[0].detach()), function.by_output);
    };
  d.add(std::move(node));
}

void exact_unary(Drawing& d) {
  using F = Tensor (*)(const Tensor&);
  static constexpr Named<F> kAll[] = {
      {"neg", neg}, {"abs", abs}, {"relu", relu}, {"clone", clone}, {"clamp", [](const Tensor& x) {
                                                                       return clamp(x, -0.5, 0.75);
                                                                     }}};
  const auto [name, f] = kAll[d.dice(0, 4)];
  d.add({.text = name,
         .inputs = {d.any()},
         .apply = [f = f](const Tensors& t) { return f(t[0]); },
         .exact = true});
}

/// Of two nodes that broadcast to each other.
void binary(Drawing& d) {
  using F = Tensor (*)(const Tensor&, const Tensor&);
  static constexpr Named<F> kAll[] = {{"add", add}, {"sub", sub}, {"mul", mul},
                                      {"div", div}, {"pow", pow}, {"maximum", maximum}};
  const int64_t choice = d.dice(0, 5);
  const auto [name, f] = kAll[choice];
  size_t a = d.any(), b = a;
  if (!d.dice.one_in(3)) {  // else a with itself
    Shape shape = d.at(a).shape();
    for (int64_t& size : shape)
      if (d.dice.one_in(3)) size = 1;
    while (!shape.empty() && d.dice.one_in(4)) shape.erase(0);
    b = d.leaf(shape);
    if (d.dice.one_in(2) && choice < 3) std::swap(a, b);
  }
  if (choice == 3) b = d.positive(b);
  if (choice == 4) a = d.positive(a);
  d.add({.text = name,
         .inputs = {a, b},
         .apply = [f = f](const Tensors& t) { return f(t[0], t[1]); },
         .terms = std::max<int64_t>(d.at(a).numel(), d.at(b).numel()),
         .exact = choice == 5});
}

void scalar(Drawing& d) {
  const double by = 0.25 * static_cast<double>(d.dice(-8, 8));
  const bool times = d.dice.one_in(2);
  d.add({.text = fmt::format("{} {}", times ? "*" : "+", by),
         .inputs = {d.any()},
         .apply = [=](const Tensors& t) { return times ? t[0] * by : by - t[0]; }});
}

void product(Drawing& d) {
  const bool batched = d.dice.one_in(2);
  const size_t a = d.any(batched ? 3 : 2);
  const int64_t k = d.at(a).size(-1), n = d.dice(1, 40);
  const bool transposed = d.dice.one_in(2);
  Shape shape = transposed ? Shape{n, k} : Shape{k, n};
  if (batched && d.dice.one_in(2)) shape.insert(0, d.dice.one_in(2) ? 1 : d.at(a).size(0));
  const size_t b = d.leaf(shape);
  d.add({.text = transposed ? "matmul transposed" : "matmul",
         .inputs = {a, b},
         .apply =
             [=](const Tensors& t) {
               return matmul(t[0], transposed ? transpose(t[1], -2, -1) : t[1]);
             },
         .terms = std::max(d.at(a).numel(), n)});
}

void linear_(Drawing& d) {
  const size_t x = d.any(static_cast<int>(d.dice(1, 3)));
  const int64_t in = d.at(x).size(-1), out = d.dice(1, 40);
  Node node{.text = "linear", .inputs = {x, d.leaf({out, in})}, .apply = [](const Tensors& t) {
              return linear(t[0], t[1], t.size() > 2 ? t[2] : Tensor());
            }};
  if (d.dice.one_in(2)) node.inputs.push_back(d.leaf({out}, -1, 1, true));
  node.terms = std::max(d.at(x).numel(), out);
  d.add(std::move(node));
}

void conv(Drawing& d) {
  const size_t x = d.any(4);
  check(d.at(x).numel() > 0, "soak", "empty");
  const int64_t channels = d.at(x).size(1),
                groups = channels > 0 && d.dice.one_in(3) ? channels : 1;
  const Pair kernel = d.dice.one_in(2) ? Pair(3) : Pair(d.dice(1, 4), d.dice(1, 4));
  const bool plain = d.dice.one_in(2);
  const Pair stride = plain ? Pair(1) : Pair(d.dice(1, 3), d.dice(1, 3)),
             dilation = plain ? 1 : d.dice(1, 2);
  const Pair padding(d.dice(0, kernel.h / 2), d.dice(0, kernel.w / 2));
  const int64_t out = groups * d.dice(1, groups == 1 ? 20 : 2);
  Node node{.text = fmt::format("conv2d stride {} padding {} dilation {} groups {}", stride,
                                padding, dilation, groups)};
  node.inputs = {x, d.leaf({out, channels / groups, kernel.h, kernel.w})};
  if (d.dice.one_in(2)) node.inputs.push_back(d.leaf({out}, -1, 1, true));
  node.apply = [=](const Tensors& t) {
    return conv2d(t[0], t[1], t.size() > 2 ? t[2] : Tensor(), stride, padding, dilation, groups);
  };
  node.terms = std::max(d.at(x).numel() / channels, std::max(channels, out) * kernel.h * kernel.w);
  node.by_largest =
      kernel == Pair(3) && stride == Pair(1) && dilation == Pair(1) && groups == 1;  // Winograd
  d.add(std::move(node));
}

void pool(Drawing& d) {
  const size_t x = d.any(4);
  const Pair kernel(d.dice(1, 4), d.dice(1, 4)), stride(d.dice(1, 3), d.dice(1, 3));
  const Pair padding(d.dice(0, kernel.h / 2), d.dice(0, kernel.w / 2)),
      out(d.dice(1, 5), d.dice(1, 5));
  const bool ceil = d.dice.one_in(2), count = d.dice.one_in(2);
  Node node{.inputs = {x}, .terms = kernel.h * kernel.w};
  switch (d.dice(0, 2)) {
    case 0:
      node.text =
          fmt::format("max_pool2d {} stride {} padding {} ceil {}", kernel, stride, padding, ceil);
      node.apply = [=](const Tensors& t) {
        return max_pool2d(t[0], kernel, stride, padding, 1, ceil);
      };
      node.exact = true;
      break;
    case 1:
      node.text = fmt::format("avg_pool2d {} stride {} padding {} ceil {} count {}", kernel, stride,
                              padding, ceil, count);
      node.apply = [=](const Tensors& t) {
        return avg_pool2d(t[0], kernel, stride, padding, ceil, count);
      };
      break;
    default:
      node.text = fmt::format("adaptive_avg_pool2d {}", out);
      node.apply = [=](const Tensors& t) { return adaptive_avg_pool2d(t[0], out); };
      node.terms = d.at(x).numel();
  }
  d.add(std::move(node));
}

int64_t some_dim(Drawing& d, size_t x) { return d.dice(0, std::max(d.at(x).dim() - 1, 0)); }

void reduction(Drawing& d) {
  const size_t x = d.any();
  Dims dims;
  for (int dim = 0; dim < d.at(x).dim(); ++dim)
    if (d.dice.one_in(2)) dims.push_back(dim);
  const bool keep = d.dice.one_in(2), average = d.dice.one_in(2);
  d.add({.text = fmt::format("{} over {}", average ? "mean" : "sum", dims),
         .inputs = {x},
         .apply =
             [=](const Tensors& t) {
               return average ? mean(t[0], dims, keep) : sum(t[0], dims, keep);
             },
         .terms = d.at(x).numel()});
}

void selection(Drawing& d) {
  const size_t x = d.any();
  const int64_t dim = some_dim(d, x), k = d.dice(1, 3);
  const bool top = d.dice.one_in(2);
  d.add({.text = fmt::format("{} along {}", top ? "topk" : "max", dim),
         .inputs = {x},
         .apply =
             [=](const Tensors& t) {
               return top ? topk(t[0], k, dim).values : max(t[0], dim).values;
             },
         .exact = true});
}

void softmax_(Drawing& d) {
  const size_t x = d.any();
  const int64_t dim = some_dim(d, x);
  const bool logs = d.dice.one_in(2);
  d.add({.text = fmt::format("{} along {}", logs ? "log_softmax" : "softmax", dim),
         .inputs = {x},
         .apply =
             [=](const Tensors& t) { return logs ? log_softmax(t[0], dim) : softmax(t[0], dim); },
         .terms = d.at(x).numel(),
         .definition =
             [=](const Tensors& t) {
               const Tensor value = t[0].detach(), e = noise(exp(value)),
                            total = noise(sum(e, {dim}, true));
               if (logs)
                 return by_output(t[0], value - log(total), [=](const Tensor& y, const Tensor& dy) {
                   return dy - noise(exp(y) * noise(sum(dy, {dim}, true)));
                 });
               return by_output(t[0], e / total, [=](const Tensor& y, const Tensor& dy) {
                 return y * (dy - noise(sum(noise(y * dy), {dim}, true)));
               });
             }});
}

void loss(Drawing& d) {
  const size_t x = d.any(2);
  const int64_t n = d.at(x).size(0), c = d.at(x).size(1);
  if (d.dice.one_in(3)) {
    const Tensor target = raw::to(test::random({n, c}, d.dice.bits(), DType::bf16), DType::f64);
    d.add({.text = "mse_loss",
           .inputs = {x},
           .apply = [=](const Tensors& t) { return mse_loss(t[0], raw::to(target, t[0].dtype())); },
           .terms = n * c,
           .rounds_between = true,
           .definition =
               [=](const Tensors& t) {
                 const Tensor off = sub(t[0], target);
                 return noise(sum(noise(mul(noise(off), noise(off))))) / static_cast<double>(n * c);
               }});
    return;
  }
  check(n > 0 && c > 0, "soak", "empty");
  std::vector<int64_t> classes;
  const Tensor chosen = zeros({n, c}, DType::f64);
  for (int64_t i = 0; i < n; ++i) {
    classes.push_back(d.dice(0, c - 1));
    raw::fill_(raw::select(raw::select(chosen, 0, i), 0, classes.back()),
               -1.0 / static_cast<double>(n));
  }
  d.add({.text = "cross_entropy",
         .inputs = {x},
         .apply = [target = from_vector(classes)](
                      const Tensors& t) { return cross_entropy(t[0], target); },
         .terms = n * c,
         .definition =
             [chosen](const Tensors& t) {
               const Tensor total = sum(noise(exp(noise(t[0]))), {1}, true);
               return sum(noise(mul(sub(noise(t[0]), noise(log(noise(total)))), chosen)));
             }});
}

/// (x - mean)·invstd·weight + bias over `dims`, with every term by itself.
Op norm_definition(const Dims& dims, const Shape& parameter) {
  return [=](const Tensors& t) {
    const Tensor x = t[0], average = mean(noise(x), dims, true);
    const Tensor off = sub(noise(x), noise(average));
    const Tensor variance = mean(mul(noise(off), noise(off)), dims, true);
    const Tensor scale = div(noise(reshape(t[1], parameter)), noise(sqrt(noise(variance + 1e-5))));
    const Tensor shift =
        sub(noise(reshape(t[2], parameter)), noise(mul(noise(average), noise(scale))));
    return add(noise(mul(noise(x), noise(scale))), noise(shift));
  };
}

void norm(Drawing& d) {
  const bool batch = d.dice.one_in(2);
  const size_t x = d.any(batch ? 4 : 3);
  const int64_t n = d.at(x).size(batch ? 1 : 2);
  Node node{.text = batch ? "batch_norm" : "layer_norm"};
  node.inputs = {x, d.leaf({n}, -1, 1, true), d.leaf({n}, -1, 1, true)};
  node.terms = d.at(x).numel();
  node.apply = [=](const Tensors& t) {
    return batch ? batch_norm(t[0], {}, {}, t[1], t[2], true) : layer_norm(t[0], {n}, t[1], t[2]);
  };
  node.definition =
      batch ? norm_definition({0, 2, 3}, {1, n, 1, 1}) : norm_definition({2}, {1, 1, n});
  d.add(std::move(node));
}

void view(Drawing& d) {
  const size_t x = d.any();
  const Shape shape = d.at(x).shape();
  const int dims = shape.size();
  const int64_t dim = some_dim(d, x), size = dims == 0 ? 0 : shape[static_cast<int>(dim)];
  Node node{.inputs = {x}, .exact = true};
  switch (d.dice(0, 5)) {
    case 0: {
      Dims order;
      for (int i = 0; i < dims; ++i) order.insert(static_cast<int>(d.dice(0, i)), i);
      node.text = fmt::format("permute {}", order);
      node.apply = [=](const Tensors& t) { return permute(t[0], order); };
      break;
    }
    case 1:
      node.text = "flat";
      node.apply = [](const Tensors& t) { return reshape(t[0], {t[0].numel()}); };
      break;
    case 2:
      check(dims > 0, "soak", "a scalar");
      node.text = fmt::format("halves of {}", dim);
      node.apply = [=](const Tensors& t) {
        Shape halves = t[0].shape();
        halves[static_cast<int>(dim)] = size / 2;
        halves.insert(static_cast<int>(dim), 2);
        return reshape(t[0], halves);
      };
      break;
    case 3: {
      const int64_t start = d.dice(0, size), end = d.dice(start, size), step = d.dice(1, 3);
      node.text = fmt::format("slice {} {}:{}:{}", dim, start, end, step);
      node.apply = [=](const Tensors& t) { return slice(t[0], dim, start, end, step); };
      break;
    }
    case 4: {
      Shape larger = shape;
      for (int64_t& each : larger)
        if (each == 1) each = d.dice(1, 4);
      if (d.dice.one_in(2)) larger.insert(0, d.dice(1, 3));
      node.text = fmt::format("expand {}", larger);
      node.terms = numel(larger);
      node.apply = [=](const Tensors& t) { return expand(t[0], larger); };
      break;
    }
    default: {
      const std::vector<int64_t> border = {d.dice(0, 2), d.dice(0, 2)};
      node.text = fmt::format("pad {} {}", border[0], border[1]);
      node.apply = [=](const Tensors& t) { return pad(t[0], border, 0.5); };
    }
  }
  d.add(std::move(node));
}

void join(Drawing& d) {
  const size_t x = d.any();
  const int64_t dim = some_dim(d, x);
  std::vector<size_t> inputs{x};
  while (inputs.size() < 4 && !d.dice.one_in(3))
    inputs.push_back(d.dice.one_in(2) ? x : d.leaf(d.at(x).shape()));
  const bool stacked = d.dice.one_in(2);
  d.add({.text = fmt::format("{} along {}", stacked ? "stack" : "cat", dim),
         .inputs = inputs,
         .apply = [=](const Tensors& t) { return stacked ? stack(t, dim) : cat(t, dim); },
         .exact = true});
}

void lookup(Drawing& d) {
  const size_t table = d.any(2);
  const int64_t rows = d.at(table).size(0);
  check(rows > 0, "soak", "empty");
  std::vector<int64_t> indices;
  for (int64_t i = d.dice(0, 30); i > 0; --i) indices.push_back(d.dice(0, rows - 1));
  d.add({.text = "embedding",
         .inputs = {table},
         .apply = [at = from_vector(indices)](const Tensors& t) { return embedding(at, t[0]); },
         .terms = static_cast<int64_t>(indices.size()) + 1,
         .exact = true});
}

void format(Drawing& d) {
  d.add({.text = "channels_last",
         .inputs = {d.any(4)},
         .apply =
             [](const Tensors& t) {
               const Tensor y = contiguous(t[0], MemoryFormat::channels_last);
               return y.is_same(t[0]) ? clone(y) : y;  // a node of its own
             },
         .exact = true});
}

}  // namespace

const std::vector<Draw>& draws() {
  static const std::vector<Draw> all = {
      unary,     exact_unary, binary,   binary, scalar, product, linear_, conv, conv,   pool,
      reduction, selection,   softmax_, loss,   norm,   view,    view,    join, lookup, format};
  return all;
}

}  // namespace quern::soak
