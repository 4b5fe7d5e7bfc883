// Which instruction sets have kernels in this build: all, unless QUERN_ONLY_ISAS names some.
#pragma once
#include <algorithm>
#include <string_view>

#include "quern/tensor/cpu_features.h"

namespace quern::test {

/// Are there kernels for it, and does the CPU run them?
inline bool is_built(Isa isa) {
  constexpr std::string_view built[] = {"portable", QUERN_BUILT_ISAS};
  return cpu_has(isa) && std::ranges::count(built, to_string(isa)) > 0;
}

}  // namespace quern::test
