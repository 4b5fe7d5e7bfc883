// Plain loops, along channels, which the compiler turns into vectors.
#include "rows.h"

namespace quern::lessons::step {

void add_rows(Rows y, float* __restrict sums) {
  for (int64_t i = 0; i < y.count; ++i, y.v += y.channels)
    for (int64_t c = 0; c < y.channels; ++c) sums[c] += y.v[c];
}

void add_squares(Rows y, const float* center, float* __restrict squares) {
  for (int64_t i = 0; i < y.count; ++i, y.v += y.channels)
    for (int64_t c = 0; c < y.channels; ++c) {
      const float distance = y.v[c] - center[c];
      squares[c] += distance * distance;
    }
}

void normalise(Rows y, ChannelMap map, float* __restrict z) {
  for (int64_t i = 0; i < y.count; ++i, y.v += y.channels, z += y.channels)
    for (int64_t c = 0; c < y.channels; ++c) {
      const float n = (y.v[c] - map.center[c]) * map.scale[c] + map.shift[c];
      z[c] = n < 0 ? 0 : n;
    }
}

void add_gradients(Rows y, ChannelMap map, const float* dz, float* __restrict sums,
                   float* __restrict products) {
  for (int64_t i = 0; i < y.count; ++i, y.v += y.channels, dz += y.channels)
    for (int64_t c = 0; c < y.channels; ++c) {
      const float distance = y.v[c] - map.center[c];
      const float slope = dz[c], dn = distance * map.scale[c] + map.shift[c] > 0 ? slope : 0;
      sums[c] += dn;
      products[c] += dn * distance;
    }
}

void apply_gradient(Rows y, ChannelMap map, const float* a, const float* b, const float* c,
                    float* __restrict dz) {
  for (int64_t i = 0; i < y.count; ++i, y.v += y.channels, dz += y.channels)
    for (int64_t k = 0; k < y.channels; ++k) {
      const float distance = y.v[k] - map.center[k];
      const float slope = dz[k], dn = distance * map.scale[k] + map.shift[k] > 0 ? slope : 0;
      dz[k] = a[k] * dn + (b[k] * distance + c[k]);
    }
}

}  // namespace quern::lessons::step
