// Packed copies of weights, kept between calls: a bounded cache shared by all ops, least recently
// used out first. Inference keeps a copy at once and so packs each weight once. Where gradients are
// recorded, and in a backward pass, one is kept from the second time that it is asked for, so that
// training, where every step changes the weights, keeps none.
#pragma once
#include <cstdint>

namespace quern {

/// What is kept, and how often it was of use.
struct PackCacheStats {
  int64_t entries, bytes;  ///< copies kept now
  int64_t hits, misses;    ///< since the start or the last clear
};
PackCacheStats pack_cache_stats();  ///< of this moment
void clear_pack_cache();            ///< drops all copies, and counts anew
/// Bounds of what is kept; QUERN_PACK_CACHE_CAPACITY and QUERN_PACK_CACHE_MIB in the environment
/// set them at first. A network that asks for more in turn, time after time, finds none of them. 0:
/// keep nothing. Error: a negative bound.
void set_pack_cache_limits(int64_t entries, int64_t bytes);
inline constexpr int64_t kPackCacheCapacity = 4096;           ///< copies, at first
inline constexpr int64_t kPackCacheBytes = int64_t{4} << 30;  ///< their bytes, at first

}  // namespace quern
