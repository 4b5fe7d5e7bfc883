// Ops that are linear in each argument, in shapes that nobody chose: f32 and bf16, both formats,
// forward and backward, against the same sums in f64. Convolution and the pools are held to other
// ops that spell out their definition: slices of a padded x, weighted and added.
//
// The bound is the textbook one. A sum of k products, in any order, is off by at most (k+2)·u times
// the sum of their sizes, u = 2^-24; storing it rounds by 2^-8 of it in bf16, and in f32 by less
// than what k+2 has to spare. For these ops the sum of sizes is the op itself on |arguments|, and k
// is the op on ones. The same holds for their gradients.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

#include "gradcheck_helper.h"
#include "quern/ops/adaptive_avg_pool2d.h"
#include "quern/ops/avg_pool2d.h"
#include "quern/ops/binary.h"
#include "quern/ops/cat.h"
#include "quern/ops/conv2d.h"
#include "quern/ops/linear.h"
#include "quern/ops/matmul.h"
#include "quern/ops/max.h"
#include "quern/ops/max_pool2d.h"
#include "quern/ops/pad.h"
#include "quern/ops/permute.h"
#include "quern/ops/reshape.h"
#include "quern/ops/slice.h"
#include "quern/ops/sum.h"
#include "quern/ops/unary.h"

using namespace quern;
using namespace quern::test;

namespace {

using Op = std::function<Tensor(const Tensors&)>;

struct Dice {
  std::mt19937_64 bits;
  int64_t operator()(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(bits() % static_cast<uint64_t>(high - low + 1));
  }
  MemoryFormat format() {
    return (*this)(0, 1) == 0 ? MemoryFormat::contiguous : MemoryFormat::channels_last;
  }
};

/// f(inputs) and the gradients of the inputs for this dy.
Tensors run(const Op& f, const Tensors& inputs, const Tensor& dy) {
  Tensors leaves, results;
  for (const Tensor& input : inputs) leaves.push_back(raw::clone(input).requires_grad_());
  const Tensor y = f(leaves);
  y.backward(dy);
  results.push_back(y.detach());
  for (const Tensor& leaf : leaves) results.push_back(leaf.grad());
  return results;
}

Tensors each(const Tensors& tensors, const std::function<Tensor(const Tensor&)>& f) {
  Tensors results;
  for (const Tensor& t : tensors) results.push_back(f(t));
  return results;
}

/// Checks `op` against `definition`, linear in each input and in f64. `extra_terms`: what op adds
/// up that the definition's weights hide, and divisions.
void check_linear(const Op& op, const Op& definition, const Tensors& inputs, uint64_t seed,
                  int64_t extra_terms = 0) {
  const DType dtype = inputs[0].dtype();
  const Tensor y = op(inputs);
  const Tensor dy = random(y.shape(), seed, dtype, y.format());
  const auto wide = [](const Tensor& t) { return raw::to(t, DType::f64); };
  const auto size = [&](const Tensor& t) { return abs(wide(t)); };
  const auto one = [&](const Tensor& t) { return ones_like(wide(t)); };

  const Tensors got = run(op, inputs, dy);
  const Tensors expected = run(definition, each(inputs, wide), wide(dy));
  const Tensors sizes = run(definition, each(inputs, size), size(dy));
  const Tensors terms = run(definition, each(inputs, one), one(dy));
  for (size_t t = 0; t < got.size(); ++t) {
    CAPTURE(t);
    REQUIRE_EQ(got[t].shape(), expected[t].shape());
    const double store = got[t].dtype() == DType::bf16 ? 0x1p-8 : 0;
    const auto g = got[t].to_vector<double>(), e = expected[t].to_vector<double>();
    const auto s = sizes[t].to_vector<double>(), k = terms[t].to_vector<double>();
    size_t wrong = 0;
    for (size_t i = 0; i < g.size(); ++i) {
      const double sum = (k[i] + 2 + static_cast<double>(extra_terms)) * 0x1p-24 * s[i];
      wrong += !(std::abs(g[i] - e[i]) <= sum + store * (std::abs(e[i]) + sum));
    }
    CHECK_EQ(wrong, 0);
  }
}

/// x summed over `dims`, slice by slice.
Tensor added_up(Tensor x, const Dims& dims) {
  Shape left;
  for (int d = 0; d < x.dim(); ++d) {
    if (std::find(dims.begin(), dims.end(), d) == dims.end()) {
      left.push_back(x.size(d));
      continue;
    }
    Tensor total = slice(x, d, 0, 1);
    for (int64_t i = 1; i < x.size(d); ++i) total = add(total, slice(x, d, i, i + 1));
    x = total;
  }
  return reshape(x, left);
}

/// The means of `out` windows along dimension d, window o from floor(o·n/out) to ceil((o+1)·n/out).
Tensor adapted(const Tensor& x, int d, int64_t out) {
  const int64_t n = x.size(d);
  Tensors windows;
  for (int64_t o = 0; o < out; ++o)
    windows.push_back(mean(slice(x, d, o * n / out, ((o + 1) * n + out - 1) / out), {d}, true));
  return cat(windows, d);
}

struct Window {
  Pair kernel, stride, padding, dilation;

  static Window any(Dice& dice, int64_t largest) {
    const Pair kernel{dice(1, largest), dice(1, largest)};
    return {kernel,
            {dice(1, 4), dice(1, 4)},
            {dice(0, kernel.h / 2), dice(0, kernel.w / 2)},
            {dice(1, 2), dice(1, 2)}};
  }
  Pair reach() const { return {dilation.h * (kernel.h - 1) + 1, dilation.w * (kernel.w - 1) + 1}; }
  Pair room(Dice& dice) const {  // a size of x that some window fits
    return {reach().h + dice(0, 12), reach().w + dice(0, 20)};
  }
  /// x under each tap of all windows, [N,C,OH,OW] each, tap by tap.
  Tensors taps(const Tensor& x, double outside = 0) const {
    const Tensor padded = pad(x, {padding.w, padding.w, padding.h, padding.h}, outside);
    const int64_t rows = padded.size(2) - reach().h + 1, columns = padded.size(3) - reach().w + 1;
    Tensors all;
    for (int64_t r = 0; r < kernel.h; ++r)
      for (int64_t s = 0; s < kernel.w; ++s) {
        const int64_t top = r * dilation.h, left = s * dilation.w;
        all.push_back(
            slice(slice(padded, 2, top, top + rows, stride.h), 3, left, left + columns, stride.w));
      }
    return all;
  }
};

}  // namespace

TEST_CASE("conv2d in random shapes") {
  Dice dice{std::mt19937_64(1)};
  for (uint64_t i = 0; i < 40; ++i) {
    const Window window = Window::any(dice, 5);
    const int64_t groups = dice(0, 3) == 0 ? dice(2, 3) : 1, in = dice(1, 20), out = dice(1, 36);
    const Pair size = window.room(dice);
    const Op definition = [&](const Tensors& t) {
      const Tensors taps = window.taps(t[0]);
      const int64_t n = taps[0].size(0), h = taps[0].size(2), w = taps[0].size(3);
      const Tensor filters = reshape(t[1], {1, groups, out, in, window.kernel.h * window.kernel.w});
      Tensor y = reshape(t[2], {1, groups * out, 1, 1});
      for (size_t tap = 0; tap < taps.size(); ++tap) {
        const Tensor filter =
            slice(filters, 4, static_cast<int64_t>(tap), static_cast<int64_t>(tap) + 1);
        const Tensor x = reshape(taps[tap], {n, groups, in, h * w});
        const Tensor product = matmul(reshape(filter, {1, groups, out, in}), x);
        y = add(y, reshape(product, {n, groups * out, h, w}));
      }
      return y;
    };
    const Op op = [&](const Tensors& t) {
      return conv2d(t[0], t[1], t[2], window.stride, window.padding, window.dilation, groups);
    };
    for (DType dtype : {DType::f32, DType::bf16}) {
      CAPTURE(i);
      CAPTURE(dtype);
      check_linear(op, definition,
                   {random({dice(1, 3), groups * in, size.h, size.w}, i, dtype, dice.format()),
                    random({groups * out, in, window.kernel.h, window.kernel.w}, i + 100, dtype),
                    random({groups * out}, i + 200, DType::f32)},
                   i + 300);
    }
  }
}

TEST_CASE("pools in random shapes") {
  Dice dice{std::mt19937_64(2)};
  for (uint64_t i = 0; i < 24; ++i) {
    Window window = Window::any(dice, 5);
    const Pair size = window.room(dice);
    const Pair out{dice(1, 9), dice(1, 9)};
    for (DType dtype : {DType::f32, DType::bf16}) {
      CAPTURE(i);
      CAPTURE(dtype);
      const Tensor x = random({dice(1, 3), dice(1, 40), size.h, size.w}, i, dtype, dice.format());
      const Op max = [&](const Tensors& t) {
        return max_pool2d(t[0], window.kernel, window.stride, window.padding, window.dilation);
      };
      const Op max_definition = [&](const Tensors& t) {
        return quern::max(stack(window.taps(t[0], -INFINITY)), 0).values;
      };
      const Tensor dy = random(max({x}).shape(), i + 1, dtype);
      const Tensors got = run(max, {x}, dy);
      const Tensors expected =
          run(max_definition, {raw::to(x, DType::f64)}, raw::to(dy, DType::f64));
      CHECK_EQ(max_abs_difference(got[0], expected[0]), 0);
      // At most 25 windows share a pixel, and |dy| < 1.
      const double store = dtype == DType::bf16 ? 0x1p-8 * 26 : 0;
      CHECK_LE(max_abs_difference(got[1], expected[1]), 25 * 25 * 0x1p-24 + store);

      Window plain = window;
      plain.dilation = 1;
      check_linear(
          [&](const Tensors& t) {
            return avg_pool2d(t[0], plain.kernel, plain.stride, plain.padding);
          },
          [&](const Tensors& t) { return mean(stack(plain.taps(t[0])), {0}); }, {x}, i + 2, 26);
      // Windows overlap by at most one pixel, in which case x is smaller than y.
      const Op adaptive = [&](const Tensors& t) { return adaptive_avg_pool2d(t[0], out); };
      const Op adaptive_definition = [&](const Tensors& t) {
        return adapted(adapted(t[0], 2, out.h), 3, out.w);
      };
      check_linear(adaptive, adaptive_definition, {x}, i + 3,
                   (size.h / out.h + 2) * (size.w / out.w + 2) +
                       (out.h / size.h + 2) * (out.w / size.w + 2));
    }
  }
}

TEST_CASE("matmul, linear, sum and mean in random shapes") {
  Dice dice{std::mt19937_64(3)};
  for (uint64_t i = 0; i < 30; ++i) {
    const int64_t b = dice(1, 4), m = dice(1, 70), k = dice(1, 90), n = dice(1, 70);
    for (DType dtype : {DType::f32, DType::bf16}) {
      CAPTURE(i);
      CAPTURE(dtype);
      const Tensor x = random({b, m, k}, i, dtype), y = random({b, n, k}, i + 1, dtype);
      const Op multiply = [](const Tensors& t) { return matmul(t[0], transpose(t[1], 1, 2)); };
      const Op spelled_out = [&](const Tensors& t) {
        return sum(mul(reshape(t[0], {b, m, 1, k}), reshape(t[1], {b, 1, n, k})), {3});
      };
      check_linear(multiply, spelled_out, {x, y}, i + 2);
      const Tensor weight = random({n, k}, i + 3, dtype), bias = random({n}, i + 4, DType::f32);
      check_linear([](const Tensors& t) { return linear(t[0], t[1], t[2]); },
                   [&](const Tensors& t) {
                     const Tensor w = reshape(t[1], {1, 1, n, k});
                     return add(sum(mul(reshape(t[0], {b, m, 1, k}), w), {3}), t[2]);
                   },
                   {x, weight, bias}, i + 5);
      const Dims dims = dice(0, 1) == 0 ? Dims{0, 2} : Dims{1};
      const Op add_up = [&](const Tensors& t) { return sum(t[0], dims); };
      const Op average = [&](const Tensors& t) { return mean(t[0], dims); };
      const Op added = [&](const Tensors& t) { return added_up(t[0], dims); };
      const double count = static_cast<double>(dims.size() == 2 ? b * k : m);
      const Op averaged = [&](const Tensors& t) { return div(added_up(t[0], dims), count); };
      check_linear(add_up, added, {x}, i + 6);
      check_linear(average, averaged, {x}, i + 7, std::max(b * k, m));
    }
  }
}
