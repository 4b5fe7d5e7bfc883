// Rounding by chance as it is defined, an element at a time: the oracle.
#include <algorithm>

#include "quern/ops/kernels/round/by_chance_kernel.h"
#include "quern/tensor/round_by_chance.h"

namespace quern::kernels {
namespace {

template <class T>
void by_chance(const ByChance& p) {
  for (int64_t at = p.first, end = p.first + p.n; at < end;) {
    const int64_t block = at / 4, stop = std::min(4 * block + 4, end);
    const auto words = philox4x32(static_cast<uint64_t>(block), p.stream, p.seed);
    for (; at < stop; ++at)
      detail::round_by_chance(p.from[at - p.first], words[static_cast<size_t>(at % 4)],
                              static_cast<T*>(p.to)[at - p.first]);
  }
}

constexpr ByChanceKernel kByChance[] = {
    {QUERN_NAMED("by_chance_bf16"), kIsa, DType::bf16, by_chance<bfloat16>},
    {QUERN_NAMED("by_chance_f16"), kIsa, DType::f16, by_chance<float16>},
};

}  // namespace

QUERN_KERNELS(ByChanceKernel, by_chance, kByChance)

}  // namespace quern::kernels
