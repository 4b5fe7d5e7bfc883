#include "noise.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "quern/autograd/grad_mode.h"
#include "quern/autograd/node.h"
#include "quern/ops/binary.h"
#include "quern/tensor/random.h"
#include "quern/tensor/raw.h"

namespace quern::soak {
namespace {

std::optional<Generator> parts;

/// 1 + part for each element.
Tensor factors(const Shape& shape) {
  const Tensor part = empty(shape, DType::f64);
  normal_(part, 1, kNoise, *parts);
  return part;
}

double largest(const Tensor& x) {
  double size = 0;
  for (const double element : x.to_vector<double>()) size = std::max(size, std::abs(element));
  return size;
}

}  // namespace

Noise::Noise(uint64_t seed) { parts.emplace(seed); }
Noise::~Noise() { parts.reset(); }

Tensor noise(const Tensor& x, bool by_largest) {
  if (!parts) return x;
  const auto rounded = [by_largest](const Tensor& t) {
    const NoGradGuard no_grad;
    const Tensor exact = t.detach(), factor = factors(t.shape());
    return by_largest ? add(exact, mul(sub(factor, 1.0), largest(t))) : mul(exact, factor);
  };
  return record("noise", rounded(x), {x},
                [rounded](const Tensor& g, Needs) -> Tensors { return {rounded(g)}; });
}

}  // namespace quern::soak
