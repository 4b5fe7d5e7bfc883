#include "quern/tensor/random.h"

#include <sleef.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "quern/tensor/parallel.h"
#include "quern/tensor/raw.h"
#include "quern/tensor/span.h"

namespace quern {
namespace {

using Words = std::array<uint32_t, 4>;

constexpr uint32_t low32(uint64_t x) { return static_cast<uint32_t>(x); }
constexpr uint32_t high32(uint64_t x) { return static_cast<uint32_t>(x >> 32); }

inline void philox_round(uint32_t& c0, uint32_t& c1, uint32_t& c2, uint32_t& c3, uint32_t k0,
                         uint32_t k1) {
  const uint64_t a = uint64_t{0xD2511F53} * c0;
  const uint64_t b = uint64_t{0xCD9E8D57} * c2;
  c0 = high32(b) ^ c1 ^ k0;
  c1 = low32(b);
  c2 = high32(a) ^ c3 ^ k1;
  c3 = low32(a);
}

/// Between rounds the key moves by the golden ratio and by sqrt(3) - 1, as 32-bit fractions.
inline void next_key(uint32_t& k0, uint32_t& k1) { k0 += 0x9E3779B9, k1 += 0xBB67AE85; }

/// philox4x32 of consecutive counters, side by side so that a compiler makes vectors of them.
struct Batch {
  static constexpr int kCounters = 16, kWords = 4 * kCounters;
  alignas(64) uint32_t words[4][kCounters];

  Batch(uint64_t first, uint64_t seed, uint64_t stream) {
    for (int lane = 0; lane < kCounters; ++lane) {
      const uint64_t counter = first + static_cast<uint64_t>(lane);
      words[0][lane] = low32(counter);
      words[1][lane] = high32(counter);
      words[2][lane] = low32(stream);
      words[3][lane] = high32(stream);
    }
    uint32_t k0 = low32(seed), k1 = high32(seed);
    for (int round = 0; round < 10; ++round) {
      for (int lane = 0; lane < kCounters; ++lane)
        philox_round(words[0][lane], words[1][lane], words[2][lane], words[3][lane], k0, k1);
      next_key(k0, k1);
    }
  }
};

constexpr int64_t kGrain = 1 << 14;  // elements a cell; a multiple of a batch's words

/// Fills out[0..n): make(batch, values) turns the words of a batch into as many numbers, in order.
template <class Make>
void fill(float* out, int64_t n, uint64_t seed, uint64_t stream, Make make) {
  parallel_chunks(n, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i += Batch::kWords) {
      float values[Batch::kWords];
      make(Batch(static_cast<uint64_t>(i / 4), seed, stream), values);
      std::copy_n(values, std::min<int64_t>(Batch::kWords, end - i), out + i);
    }
  });
}

/// The upper 24 bits, which a float holds exactly, as a number in [0, 1).
float unit(uint32_t word) { return static_cast<float>(static_cast<int32_t>(word >> 8)) * 0x1p-24f; }

void make_uniform(const Batch& batch, float* values) {
  for (int lane = 0; lane < Batch::kCounters; ++lane)
    for (int word = 0; word < 4; ++word) values[4 * lane + word] = unit(batch.words[word][lane]);
}

/// Box-Muller: of two uniform numbers one becomes a radius and one an angle, and those two normal
/// numbers. The radius takes 31 bits and stays off zero: the tails reach 6.6 standard deviations.
void make_normal(const Batch& batch, float* values) {
  using Float4 [[gnu::vector_size(16)]] = float;  // what sleef calls __m128 or float32x4_t
  for (int pair : {0, 2}) {
    const auto& radii = batch.words[pair];
    const auto& angles = batch.words[pair + 1];
    for (int lane = 0; lane < Batch::kCounters; lane += 4) {
      Float4 u, turns;
      for (int i = 0; i < 4; ++i) {
        u[i] = (static_cast<float>(static_cast<int32_t>(radii[lane + i] >> 1)) + 0.5f) * 0x1p-31f;
        turns[i] = 2 * unit(angles[lane + i]);
      }
      const Float4 radius = Sleef_sqrtf4_u05(-2.0f * static_cast<Float4>(Sleef_logf4_u10(u)));
      const auto sincos = Sleef_sincospif4_u35(turns);
      const Float4 first = radius * sincos.y, second = radius * sincos.x;
      for (int i = 0; i < 4; ++i) {
        values[4 * (lane + i) + pair] = first[i];
        values[4 * (lane + i) + pair + 1] = second[i];
      }
    }
  }
}

/// The largest f32 that is at most `bound`, or the largest bf16 or f16 if the dtype is that.
float at_most(double bound, DType dtype) {
  auto value = static_cast<float>(bound);
  if (value > bound) value = std::nextafter(value, -INFINITY);
  if (dtype == DType::f16) {
    const float16 near(value);
    return near > value
               ? float16::from_bits(static_cast<uint16_t>(near.bits + (value < 0 ? 1 : -1)))
               : near;
  }
  if (dtype != DType::bf16) return value;
  const auto bits = std::bit_cast<uint32_t>(value), rest = bits & 0xffff;
  return std::bit_cast<float>(bits - rest + (value < 0 && rest != 0 ? 0x10000 : 0));
}

/// The largest one below `bound`, and not subnormal: these count as zero.
float below(double bound, DType dtype) {
  constexpr float kLeast = std::numeric_limits<float>::min();
  const float value = at_most(std::nextafter(bound, -INFINITY), dtype);
  return value > -kLeast && value < kLeast ? (bound > 0 ? 0 : -kLeast) : value;
}

/// t = min(offset + scale·draw(i), most), drawn as f32 in logical order and converted.
template <class Draw>
void fill_tensor(std::string_view op, const Tensor& t, double offset, double scale, float most,
                 Generator& generator, Draw draw) {
  check(is_floating(t.dtype()), op, "dtype: expected a floating one, got {}", t.dtype());
  raw::check_writable(op, t, "tensor");
  const Span span(op);
  const bool direct = t.dtype() == DType::f32 && t.is_dense_as(MemoryFormat::contiguous);
  const Tensor values = direct ? t : empty(t.shape());
  float* out = values.out<float>();
  draw(out, values.numel(), generator.seed(), generator.next_stream());
  const auto shift = static_cast<float>(offset), factor = static_cast<float>(scale);
  parallel_chunks(values.numel(), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) out[i] = std::min(shift + factor * out[i], most);
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
  const Words words = philox4x32(block, stream, seed);
  const size_t at = 2 * static_cast<size_t>(i % 2);
  return uint64_t{words[at + 1]} << 32 | words[at];
}

/// The least and the greatest number of a dtype within low..high. What lies between them is rounded
/// to a number that does, too.
std::pair<int64_t, int64_t> held_range(int64_t low, int64_t high, DType dtype) {
  return visit_dtype(dtype, [=]<class T>(std::type_identity<T>) -> std::pair<int64_t, int64_t> {
    if constexpr (std::is_integral_v<T>) {
      using Limits = std::numeric_limits<T>;
      return {std::max<int64_t>(low, Limits::min()), std::min<int64_t>(high, Limits::max())};
    } else {
      constexpr bool kHalf = std::is_same_v<T, float16>;
      constexpr int kDigits = std::is_same_v<T, bfloat16> ? 8
                              : kHalf                     ? 11
                              : std::is_same_v<T, float>  ? 24
                                                          : 53;
      const auto held = [](int64_t value, bool up) {
        const uint64_t size =
            value < 0 ? -static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
        const int excess = std::max(0, static_cast<int>(std::bit_width(size)) - kDigits);
        const uint64_t step = uint64_t{1} << excess, cut = size & ~(step - 1);
        const uint64_t there = cut != size && up == (value > 0) ? cut + step : cut;
        return value < 0 ? -static_cast<__int128>(there) : static_cast<__int128>(there);
      };
      using Limits = std::numeric_limits<int64_t>;
      constexpr int64_t kLeast = kHalf ? -65504 : Limits::min(),
                        kMost = kHalf ? 65504 : Limits::max();
      if (low > kMost || high < kLeast) return {1, 0};
      const __int128 least = held(std::max(low, kLeast), true),
                     most = held(std::min(high, kMost), false);
      if (least > most) return {1, 0};  // among them those beyond int64
      return {static_cast<int64_t>(least), static_cast<int64_t>(most)};
    }
  });
}

}  // namespace

Words philox4x32(Words counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    philox_round(counter[0], counter[1], counter[2], counter[3], key[0], key[1]);
    next_key(key[0], key[1]);
  }
  return counter;
}

Words philox4x32(uint64_t block, uint64_t stream, uint64_t seed) {
  return philox4x32({low32(block), high32(block), low32(stream), high32(stream)},
                    {low32(seed), high32(seed)});
}

Generator& default_generator() {
  static Generator generator;
  return generator;
}

void manual_seed(uint64_t seed) { default_generator() = Generator(seed); }

uint32_t RandomStream::word() {
  const uint64_t block = next_ / 4;
  if (next_ % 4 == 0) block_ = philox4x32(block, stream_, seed_);
  return block_[next_++ % 4];
}

double RandomStream::uniform(double low, double high) {
  const uint64_t upper = word() >> 5, bits = upper << 26 | word() >> 6;
  return std::min(low + (high - low) * (static_cast<double>(bits) * 0x1p-53),
                  std::nextafter(high, low));
}

int64_t RandomStream::below(int64_t n) {
  const uint64_t upper = word(), bits = upper << 32 | word();
  // The high half of n·bits: of 2^64 values, all but n are spread evenly.
  return static_cast<int64_t>((static_cast<unsigned __int128>(n) * bits) >> 64);
}

void fill_uniform(float* out, int64_t n, uint64_t seed, uint64_t stream) {
  fill(out, n, seed, stream, make_uniform);
}

void fill_normal(float* out, int64_t n, uint64_t seed, uint64_t stream) {
  fill(out, n, seed, stream, make_normal);
}

void uniform_(const Tensor& t, double low, double high, Generator& generator) {
  check(t.defined(), "uniform_", "tensor: expected a defined tensor, got undefined");
  check(low <= high, "uniform_", "high: expected at least {}, got {}", low, high);
  check(high - low <= std::numeric_limits<float>::max(), "uniform_",
        "high: expected at most {} + 3.4e38, got {}", low, high);
  const float most = std::max(below(high, t.dtype()), static_cast<float>(low));
  fill_tensor("uniform_", t, low, high - low, most, generator, fill_uniform);
}

void normal_(const Tensor& t, double mean, double std, Generator& generator) {
  check(t.defined(), "normal_", "tensor: expected a defined tensor, got undefined");
  check(std >= 0, "normal_", "std: expected at least 0, got {}", std);
  fill_tensor("normal_", t, mean, std, INFINITY, generator, fill_normal);
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
  const std::pair held = held_range(low, high - 1, dtype);
  const int64_t least = held.first, most = held.second;
  check(least <= most, "randint", "low, high: expected a range with numbers of {}, got {}, {}",
        dtype, low, high);
  check(is_floating(dtype) || (least == low && most == high - 1), "randint",
        "low, high: expected a range within {}, got {}, {}", dtype, low, high);
  const Span span("randint");
  Tensor t = empty(shape, DType::i64);
  int64_t* out = t.out<int64_t>();
  const uint64_t range = static_cast<uint64_t>(high) - static_cast<uint64_t>(low);
  const uint64_t seed = default_generator().seed(), stream = default_generator().next_stream();
  parallel_chunks(t.numel(), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      // The upper half of a 128-bit product is uniform on 0..range-1 up to range/2^64.
      const unsigned __int128 product =
          static_cast<unsigned __int128>(word64(i, seed, stream)) * range;
      out[i] = std::clamp(
          static_cast<int64_t>(static_cast<uint64_t>(low) + static_cast<uint64_t>(product >> 64)),
          least, most);
    }
  });
  return raw::to(t, dtype);
}

}  // namespace quern
