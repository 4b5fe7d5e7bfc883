// Two sizes of a 2-D window, as PyTorch takes them: one number for both, or {height, width}.
#pragma once
#include <cstdint>
#include <string>

#include "quern/tensor/text_formatter.h"

namespace quern {

struct Pair {
  int64_t h, w;  ///< along the height and the width

  constexpr Pair(int64_t both) : h(both), w(both) {}           ///< one number for both
  constexpr Pair(int64_t h, int64_t w) : h(h), w(w) {}         ///< {height, width}
  friend constexpr bool operator==(Pair a, Pair b) = default;  ///< both the same?
};

/// "(3,3)"
inline std::string to_string(Pair pair) { return fmt::format("({},{})", pair.h, pair.w); }

}  // namespace quern

template <>
struct fmt::formatter<quern::Pair> : quern::TextFormatter<quern::Pair> {};
