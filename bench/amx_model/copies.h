#pragma once
#include "counting_tiles.h"

namespace quern::bench {

/// Are copies of operands counted, and not made?
inline bool counting_copies = false;

}  // namespace quern::bench
