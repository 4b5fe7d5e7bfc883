#include "noise.h"

#include <optional>

#include "gradcheck_helper.h"
#include "quern/ops/binary.h"

namespace quern::soak {
namespace {

std::optional<Generator> parts;

}  // namespace

Noise::Noise(uint64_t seed) { parts.emplace(seed); }
Noise::~Noise() { parts.reset(); }

Tensor noise(const Tensor& x, bool by_largest) {
  if (!parts) return x;
  const Tensor part = empty(x.shape(), DType::f64);
  normal_(part, 0, kNoise, *parts);
  if (!by_largest) return mul(x, part.detach() + 1);
  double largest = 0;
  for (const double element : raw::to_vector<double>(x))
    largest = std::max(largest, std::abs(element));
  return add(mul(x, part + 1), part * largest);
}

}  // namespace quern::soak
