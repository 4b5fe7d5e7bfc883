// The largest error of many, for tests.
#pragma once
#include <cmath>

namespace quern::test {

/// The larger number; NaN if one is. (std::max(a, NaN) is a: a wrong NaN would pass.)
inline double larger(double a, double b) { return a > b || std::isnan(a) ? a : b; }

}  // namespace quern::test
