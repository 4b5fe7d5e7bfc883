// The loops over pixels and their channels that all steps of this lesson run. The steps differ in
// where the pixels are by then: in memory, or still in the core's own cache.
#pragma once
#include <cstdint>

namespace quern::lessons::step {

/// Neighbouring pixels, channels last: v [count, channels]. What is of a channel is [channels].
struct Rows {
  const float* v;
  int64_t count, channels;
};

/// Batch norm and relu: y ↦ relu((y - center)·scale + shift).
struct ChannelMap {
  const float *center, *scale, *shift;
};

void add_rows(Rows y, float* sums);                             ///< sums += Σy
void add_squares(Rows y, const float* center, float* squares);  ///< squares += Σ(y - center)²
void normalise(Rows y, ChannelMap map, float* z);               ///< z = map(y)

// dn is what comes back through the relu: dz where map(y) > 0, else 0.

/// sums += Σdn, products += Σdn·(y - center)
void add_gradients(Rows y, ChannelMap map, const float* dz, float* sums, float* products);
/// dz = a·dn + b·(y - center) + c
void apply_gradient(Rows y, ChannelMap map, const float* a, const float* b, const float* c,
                    float* dz);

}  // namespace quern::lessons::step
