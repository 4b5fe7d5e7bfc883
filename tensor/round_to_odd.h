// f64 to f32 on the way to fewer bits.
#pragma once
#include <bit>
#include <cstdint>

namespace quern::detail {

/// A float on the same side of all numbers of half as many bits, and of what lies between two of
/// them: that of the two beside `value` whose last bit is set, unless it is exact. Who rounds it
/// afterwards rounds `value`, once. (Boldo & Melquiond, "Emulation of FMA and correctly rounded
/// sums: proved algorithms using rounding to odd", 2008.)
constexpr float round_to_odd(double value) {
  const auto near = static_cast<float>(value);
  if (static_cast<double>(near) == value) return near;
  const auto size = [](double x) { return x < 0 ? -x : x; };
  auto u = std::bit_cast<uint32_t>(near);
  if (size(near) > size(value)) --u;
  return std::bit_cast<float>(u | 1u);
}

}  // namespace quern::detail
