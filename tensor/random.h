// Counter-based random numbers: element i of a draw depends on (seed, stream, i) alone, so threads
// and chunks don't matter. The generator is Philox4x32-10 of Salmon et al., "Parallel random
// numbers: as easy as 1, 2, 3", SC'11.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>

#include "quern/tensor/tensor.h"

namespace quern {

/// Ten rounds of Philox on a 128-bit counter with a 64-bit key.
std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);
/// Words 4·block to 4·block + 3 of a stream: counter {block, stream}, key seed.
std::array<uint32_t, 4> philox4x32(uint64_t block, uint64_t stream, uint64_t seed);

/// Names a sequence of random numbers. Each draw takes the next stream: draws never overlap.
class Generator {
 public:
  /// With `stream` as its next one: a generator that goes on from another's state.
  explicit Generator(uint64_t seed = 0, uint64_t stream = 0) : seed_(seed), stream_(stream) {}
  uint64_t seed() const { return seed_; }      ///< as it was given
  uint64_t stream() const { return stream_; }  ///< the next one
  /// Threads may ask at once: each gets one of its own, whichever comes first.
  uint64_t next_stream() { return std::atomic_ref(stream_).fetch_add(1); }

 private:
  uint64_t seed_;
  uint64_t stream_;
};

/// The generator of draws that name none. If several threads draw from it, which of them gets which
/// numbers depends on who comes first.
Generator& default_generator();
void manual_seed(uint64_t seed);  ///< starts the default generator anew

// Element i of a stream: word i%4 of philox({i/4, stream}, seed); normals by Box-Muller from pairs
// of words.
void fill_uniform(float* out, int64_t n, uint64_t seed, uint64_t stream);  ///< [0, 1), 24 bits
void fill_normal(float* out, int64_t n, uint64_t seed, uint64_t stream);   ///< mean 0, variance 1

/// The numbers of a stream, one at a time.
class RandomStream {
 public:
  /// From its first number.
  RandomStream(uint64_t seed, uint64_t stream) : seed_(seed), stream_(stream) {}
  uint32_t word();                          ///< the next 32 bits
  double uniform(double low, double high);  ///< [low, high): 53 bits, of two words
  int64_t below(int64_t n);                 ///< 0..n-1, of two words; n > 0

 private:
  uint64_t seed_, stream_, next_ = 0;
  std::array<uint32_t, 4> block_{};
};

/// Uniform on [low, high), or low where the dtype has no number between them; in place, any
/// floating dtype, in logical order whatever the strides. Errors: another dtype; expanded or
/// overlapping elements; high < low or too far from it for f32.
void uniform_(const Tensor& t, double low, double high, Generator& generator = default_generator());
/// Normal, likewise. Errors: as uniform_(); std < 0.
void normal_(const Tensor& t, double mean, double std, Generator& generator = default_generator());

Tensor rand(const Shape& shape, DType dtype = DType::f32);   ///< uniform on [0, 1)
Tensor randn(const Shape& shape, DType dtype = DType::f32);  ///< standard normal
/// Integers in low..high-1; those that a floating dtype does not hold are rounded to others of the
/// range. Errors: high <= low; a range that an integer dtype does not hold, or a floating one no
/// number of.
Tensor randint(int64_t low, int64_t high, const Shape& shape, DType dtype = DType::i64);

}  // namespace quern
