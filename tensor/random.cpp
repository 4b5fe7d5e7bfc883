#include "quern/tensor/random.h"

#include <cmath>
#include <numbers>

#include "quern/tensor/parallel.h"
#include "quern/tensor/raw.h"

namespace quern {
namespace {

using Words = std::array<uint32_t, 4>;

constexpr uint32_t low32(uint64_t x) { return static_cast<uint32_t>(x); }
constexpr uint32_t high32(uint64_t x) { return static_cast<uint32_t>(x >> 32); }

constexpr int64_t kGrain = 1 << 14;  // elements a cell; a multiple of the four words of a counter

/// Fills out[0..n): four elements at a time are `make` of the four words of one counter.
template <class Make>
void fill(float* out, int64_t n, uint64_t seed, uint64_t stream, Make make) {
  parallel_chunks(n, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i += 4) {
      const auto block = static_cast<uint64_t>(i / 4);
      const std::array<float, 4> values =
          make(philox4x32({low32(block), high32(block), low32(stream), high32(stream)},
                          {low32(seed), high32(seed)}));
      std::copy_n(values.begin(), std::min<int64_t>(4, end - i), out + i);
    }
  });
}

/// The upper 24 bits, which a float holds exactly, as a number in [0, 1).
float unit(uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24f; }

/// Box-Muller: two uniform numbers become a radius and an angle, and those two normal numbers. The
/// radius takes 31 bits and stays off zero, so that the tails reach 6.6 standard deviations.
std::array<float, 2> normal_pair(uint32_t a, uint32_t b) {
  const float u = (static_cast<float>(a >> 1) + 0.5f) * 0x1p-31f;
  const float radius = std::sqrt(-2.0f * std::log(u));
  const float angle = 2.0f * std::numbers::pi_v<float> * unit(b);
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

/// t = offset + scale·draw(i), drawn as f32 in logical order and converted.
template <class Draw>
void fill_tensor(std::string_view op, const Tensor& t, double offset, double scale,
                 Generator& generator, Draw draw) {
  check(is_floating(t.dtype()), op, "dtype: expected bf16, f32 or f64, got {}", t.dtype());
  const bool direct = t.dtype() == DType::f32 && t.is_dense_as(MemoryFormat::contiguous);
  const Tensor values = direct ? t : empty(t.shape());
  float* out = values.data<float>();
  draw(out, values.numel(), generator.seed(), generator.next_stream());
  const auto shift = static_cast<float>(offset), factor = static_cast<float>(scale);
  parallel_chunks(values.numel(), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) out[i] = shift + factor * out[i];
  });
  if (direct) {
    t.storage()->bump_version();
  } else {
    raw::copy_(t, values);
  }
}

/// Element i of a stream as 64 bits: words 2·(i%2) and 2·(i%2)+1 of counter {i/2, stream}.
uint64_t word64(int64_t i, uint64_t seed, uint64_t stream) {
  const auto block = static_cast<uint64_t>(i / 2);
  const Words words = philox4x32({low32(block), high32(block), low32(stream), high32(stream)},
                                 {low32(seed), high32(seed)});
  const size_t at = 2 * static_cast<size_t>(i % 2);
  return uint64_t{words[at + 1]} << 32 | words[at];
}

}  // namespace

Words philox4x32(Words counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {high32(b) ^ counter[1] ^ key[0], low32(b), high32(a) ^ counter[3] ^ key[1],
               low32(a)};
    key[0] += 0x9E3779B9;  // the golden ratio
    key[1] += 0xBB67AE85;  // sqrt(3) - 1
  }
  return counter;
}

Generator& default_generator() {
  static Generator generator;
  return generator;
}

void manual_seed(uint64_t seed) { default_generator() = Generator(seed); }

void fill_uniform(float* out, int64_t n, uint64_t seed, uint64_t stream) {
  fill(out, n, seed, stream, [](const Words& words) -> std::array<float, 4> {
    return {unit(words[0]), unit(words[1]), unit(words[2]), unit(words[3])};
  });
}

void fill_normal(float* out, int64_t n, uint64_t seed, uint64_t stream) {
  fill(out, n, seed, stream, [](const Words& words) -> std::array<float, 4> {
    const auto [a, b] = normal_pair(words[0], words[1]);
    const auto [c, d] = normal_pair(words[2], words[3]);
    return {a, b, c, d};
  });
}

void uniform_(const Tensor& t, double low, double high, Generator& generator) {
  check(t.defined(), "uniform_", "tensor: expected a defined tensor, got undefined");
  check(low <= high, "uniform_", "high: expected at least {}, got {}", low, high);
  fill_tensor("uniform_", t, low, high - low, generator, fill_uniform);
}

void normal_(const Tensor& t, double mean, double std, Generator& generator) {
  check(t.defined(), "normal_", "tensor: expected a defined tensor, got undefined");
  check(std >= 0, "normal_", "std: expected at least 0, got {}", std);
  fill_tensor("normal_", t, mean, std, generator, fill_normal);
}

Tensor rand(const Shape& shape, DType dtype) {
  Tensor t = empty(shape, dtype);
  uniform_(t, 0, 1);
  return t;
}

Tensor randn(const Shape& shape, DType dtype) {
  Tensor t = empty(shape, dtype);
  normal_(t, 0, 1);
  return t;
}

Tensor randint(int64_t low, int64_t high, const Shape& shape, DType dtype) {
  check(low < high, "randint", "high: expected more than {}, got {}", low, high);
  Tensor t = empty(shape, DType::i64);
  int64_t* out = t.data<int64_t>();
  const uint64_t range = static_cast<uint64_t>(high) - static_cast<uint64_t>(low);
  const uint64_t seed = default_generator().seed(), stream = default_generator().next_stream();
  parallel_chunks(t.numel(), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      // The upper half of a 128-bit product is uniform on 0..range-1 up to range/2^64.
      const unsigned __int128 product =
          static_cast<unsigned __int128>(word64(i, seed, stream)) * range;
      out[i] =
          static_cast<int64_t>(static_cast<uint64_t>(low) + static_cast<uint64_t>(product >> 64));
    }
  });
  return raw::to(t, dtype);
}

}  // namespace quern
