// Division of integers, rounded up. Not for files with ISA flags: the linker keeps one copy of an
// inline function.
#pragma once
#include <cstdint>

namespace quern {

/// a / b rounded up; b > 0.
constexpr int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b > 0); }

/// The least multiple that is not less than n.
constexpr int64_t round_up(int64_t n, int64_t multiple) { return ceil_div(n, multiple) * multiple; }

}  // namespace quern
