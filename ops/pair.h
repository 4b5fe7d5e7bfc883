// Two sizes of a 2-D window, as PyTorch takes them: one number for both, or {height, width}.
#pragma once
#include <fmt/core.h>

#include <cstdint>

namespace quern {

struct Pair {
  int64_t h, w;

  constexpr Pair(int64_t both) : h(both), w(both) {}
  constexpr Pair(int64_t h, int64_t w) : h(h), w(w) {}
  friend constexpr bool operator==(Pair a, Pair b) = default;
};

}  // namespace quern

template <>
struct fmt::formatter<quern::Pair> : fmt::formatter<int64_t> {
  auto format(quern::Pair pair, format_context& ctx) const {
    return fmt::format_to(ctx.out(), "({},{})", pair.h, pair.w);
  }
};
