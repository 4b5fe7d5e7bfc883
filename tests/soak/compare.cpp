// The bounds. The result of an op that is computed in precision u, with sums of at most K terms, is
// the exact one of operands and intermediate terms that are each off by a random part of at most u,
// K of them one after the other in sums. What parts of standard deviation 1 would do to an element,
// r, is observed: the root mean square over kProbes runs in f64 with noise (noise.h). Then
//   forward   u·|y| + (32 + 4·K)·2^-24·(|y| + r)   rounded once to y's dtype; what comes before is
//                                                  f32
//   backward  8·u·(|g| + r) + the same of g        a dy is rounded on the way in, terms of
//                                                  broadcast sums are rounded
// Independent parts of at most u do not add up to more than 8·u·r with a probability of
// 1 - 2·exp(-32) [Hoeffding, 1963]; 32 instead of 8 allows functions a few roundings each, and 4·K
// sums whose errors lean to one side.
#include "compare.h"

#include <cmath>

#include "gradcheck_helper.h"
#include "noise.h"
#include "quern/ops/convert.h"
#include "tensor/threads.h"

namespace quern::soak {
namespace {

constexpr int kProbes = 16;
constexpr double kUnderflow = 0x1p-100;  // f32 flushes what is below 2^-126, of each of many terms

Tensor wide(const Tensor& t) { return raw::to(t, DType::f64); }
double unit(DType dtype) { return dtype == DType::bf16 ? 0x1p-8 : 0x1p-24; }

/// The values and gradients of a run; undefined where there are none.
struct Run {
  Tensors values, gradients;
  Tensors leaf_gradients;
};

Tensor make_leaf(const Node& node, DType dtype) {
  if (node.wide) dtype = DType::f32;
  Tensor t = raw::to(node.value, dtype);
  if (node.layout == Node::Layout::channels_last)
    t = raw::contiguous(t, MemoryFormat::channels_last);
  if (node.layout == Node::Layout::strided) t = test::strided(t);
  if (t.is_same(node.value)) t = raw::clone(t);
  return t.requires_grad_();
}

/// `observed`: all values and gradients are copied, else only the result and the gradients of
/// leaves.
Run run(const Program& program, DType dtype, bool observed) {
  const size_t n = program.nodes.size();
  Run result{Tensors(n), Tensors(n), Tensors(n)};
  Tensors tensors;
  for (size_t i = 0; i < n; ++i) {
    const Node& node = program.nodes[i];
    Tensors inputs;
    for (const size_t input : node.inputs) inputs.push_back(tensors[input]);
    tensors.push_back(node.apply ? node.apply(inputs) : make_leaf(node, dtype));
    if (!observed && i + 1 < n) continue;
    result.values[i] = raw::clone(tensors[i]);
    tensors[i].register_hook([&place = result.gradients[i]](const Tensor& g) {
      place = raw::clone(g);
      return Tensor();
    });
  }
  const Tensor root = tensors.back();
  Tensors leaves(n);
  for (size_t i = 0; i < n; ++i)
    if (!program.nodes[i].apply) leaves[i] = tensors[i];
  tensors.clear();
  root.backward();
  for (size_t i = 0; i < n; ++i)
    if (leaves[i].defined()) result.leaf_gradients[i] = leaves[i].grad();
  return result;
}

/// y and the gradients of the operands, in f64.
Tensors evaluate(const Node& node, const Tensors& operands, const Tensor& dy) {
  Tensors leaves, noisy;
  for (const Tensor& t : operands) {
    leaves.push_back(raw::clone(t).requires_grad_());
    noisy.push_back(node.exact ? leaves.back() : noise(leaves.back(), node.by_largest));
  }
  const Tensor y = node.definition ? node.definition(noisy) : node.apply(noisy);
  Tensors results{y.detach()};
  if (dy.defined()) y.backward(noise(dy, node.by_largest));
  for (const Tensor& leaf : leaves) results.push_back(dy.defined() ? leaf.grad() : Tensor());
  return results;
}

using Numbers = std::vector<double>;
Numbers numbers(const Tensor& t) { return t.defined() ? t.to_vector<double>() : Numbers(); }

struct Expected {
  Numbers value, noise;  // r
};

/// Of y and of the gradients of the operands.
std::vector<Expected> expect(const Node& node, const Tensors& operands, const Tensor& dy,
                             uint64_t seed) {
  std::vector<Expected> all;
  for (const Tensor& t : evaluate(node, operands, dy)) {
    all.push_back({numbers(t), {}});
    all.back().noise.resize(all.back().value.size());
  }
  for (uint64_t probe = 0; probe < kProbes; ++probe) {
    const Noise on(seed * kProbes + probe);
    const Tensors noisy = evaluate(node, operands, dy);
    for (size_t t = 0; t < all.size(); ++t) {
      const Numbers changed = numbers(noisy[t]);
      for (size_t i = 0; i < changed.size(); ++i) {
        const double part = (changed[i] - all[t].value[i]) / kNoise;
        all[t].noise[i] += part * part / kProbes;
      }
    }
  }
  for (Expected& e : all)
    for (double& part : e.noise) part = std::sqrt(part);
  return all;
}

double of_sums(const Node& node, double value, double noise) {
  return static_cast<double>(32 + 4 * node.terms) * 0x1p-24 * (std::abs(value) + noise) +
         kUnderflow;
}

/// The first element that is farther from what is expected than its bound.
std::string outside(const char* what, const Tensor& got, const Numbers& expected,
                    const Numbers& bound) {
  const Numbers g = numbers(got);
  if (g.size() != expected.size())
    return fmt::format("{}: {} elements for {}", what, g.size(), expected.size());
  for (size_t i = 0; i < g.size(); ++i)
    if (!(std::abs(g[i] - expected[i]) <= bound[i]))
      return fmt::format("{} {} [{}]: expected {} ± {}, got {}", what, got, i, expected[i],
                         bound[i], g[i]);
  return "";
}

}  // namespace

std::string compare(const Program& program, DType dtype, uint64_t seed) {
  const test::Threads one(1);
  const size_t n = program.nodes.size();
  const Run got = run(program, dtype, true);

  struct Sum {
    Numbers value, bound, size;
    DType narrowest = DType::f64;
    void add(const Expected& e, const std::function<double(double, double)>& bound_of) {
      value.resize(e.value.size()), bound.resize(e.value.size()), size.resize(e.value.size());
      for (size_t i = 0; i < e.value.size(); ++i) {
        value[i] += e.value[i];
        size[i] += std::abs(e.value[i]);
        bound[i] += bound_of(e.value[i], e.noise[i]);
      }
    }
  };
  std::vector<Sum> gradients(n);
  std::vector<int> consumers(n);
  for (size_t i = 0; i < n; ++i) {
    const Node& node = program.nodes[i];
    if (!node.apply) continue;
    const Tensor &y = got.values[i], &dy = got.gradients[i];
    Tensors operands;
    double u = unit(y.dtype());
    for (const size_t input : node.inputs) {
      operands.push_back(wide(got.values[input]));
      u = std::max(u, unit(got.values[input].dtype()));
    }
    const auto expected = expect(node, operands, dy.defined() ? wide(dy) : Tensor(), seed + i);
    Numbers bound(expected[0].value.size());
    for (size_t e = 0; e < bound.size(); ++e) {
      const double value = expected[0].value[e];
      const double r = expected[0].noise[e], stored = unit(y.dtype()) * std::abs(value);
      const double between = node.rounds_between ? 8 * unit(y.dtype()) * (std::abs(value) + r) : 0;
      bound[e] = node.exact ? 0 : stored + between + of_sums(node, value, r);
    }
    if (const auto error = outside("forward", y, expected[0].value, bound); !error.empty())
      return fmt::format("{} = {}: {}", i, node.text, error);
    if (!dy.defined()) continue;
    for (size_t k = 0; k < node.inputs.size(); ++k) {
      ++consumers[node.inputs[k]];
      gradients[node.inputs[k]].add(expected[k + 1], [&](double value, double r) {
        return 8 * u * (std::abs(value) + r) + of_sums(node, value, r);
      });
    }
  }

  for (size_t i = 0; i + 1 < n; ++i) {
    const Tensor& g = got.gradients[i];
    if (!g.defined()) {
      if (consumers[i] > 0) return fmt::format("{} = {}: no gradient", i, program.nodes[i].text);
      continue;
    }
    Sum& sum = gradients[i];
    for (size_t e = 0; e < sum.bound.size(); ++e)  // partial sums are rounded, too
      sum.bound[e] += consumers[i] * unit(got.values[i].dtype()) * sum.size[e];
    if (const auto error = outside("gradient", g, sum.value, sum.bound); !error.empty())
      return fmt::format("{} = {}: {}", i, program.nodes[i].text, error);
    if (const Tensor& kept = got.leaf_gradients[i];
        kept.defined() && !test::same_bits(kept, raw::to(g, kept.dtype())))
      return fmt::format("{} = {}: grad() is not what its hook has seen", i, program.nodes[i].text);
  }

  const test::Threads three(3);
  const Run again = run(program, dtype, false);
  if (!test::same_bits(again.values[n - 1], got.values[n - 1]))
    return "the result differs on 3 threads";
  for (size_t i = 0; i < n; ++i) {
    const Tensor &a = again.leaf_gradients[i], &b = got.leaf_gradients[i];
    if (a.defined() != b.defined() || (a.defined() && !test::same_bits(a, b)))
      return fmt::format("{} = {}: its gradient differs on 3 threads", i, program.nodes[i].text);
  }
  return "";
}

}  // namespace quern::soak
