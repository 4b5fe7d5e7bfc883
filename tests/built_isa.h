// Which instruction sets have kernels in this build: all, unless QUERN_ONLY_ISAS names some.
#pragma once
#include <doctest/doctest.h>

#include <algorithm>
#include <initializer_list>
#include <set>
#include <string>
#include <string_view>

#include "quern/tensor/cpu_features.h"

namespace quern::test {

/// Are there kernels for it, whatever the CPU runs?
inline bool has_kernels(Isa isa) {
  constexpr std::string_view built[] = {QUERN_BUILT_ISAS};
  return std::ranges::count(built, to_string(isa)) > 0;
}

/// Are there kernels for it, and does the CPU run them?
inline bool is_built(Isa isa) { return cpu_has(isa) && has_kernels(isa); }

/// Are there kernels for vectors of f32 that run under the cap?
inline bool f32_vectors() {
  constexpr Isa vectors[] = {Isa::avx2, Isa::avx512, Isa::neon, Isa::sve};
  return std::ranges::any_of(vectors, [](Isa isa) { return isa_enabled(isa) && has_kernels(isa); });
}

/// Calls f with each of `isas` that is_built(), the cap set to it. They must be all those that this
/// CPU runs of the list's records.
template <class List, class F>
void each_cap(std::initializer_list<Isa> isas, const List& list, F f) {
  const Isa before = isa_cap();
  std::set<std::string_view> ran, listed;
  for (const auto* record : list) {
    set_isa_cap(record->isa);  // permission for AMX's tiles is asked for under no lower one
    if (is_built(record->isa)) listed.insert(to_string(record->isa));
  }
  for (const Isa isa : isas) {
    set_isa_cap(isa);
    if (!is_built(isa)) {
      if (has_kernels(isa)) MESSAGE("skipped: ", why_disabled(isa));
      continue;
    }
    CAPTURE(std::string(to_string(isa)));
    f(isa);
    ran.insert(to_string(isa));
  }
  set_isa_cap(before);
  CHECK(ran.contains("portable") == has_kernels(Isa::portable));
  CHECK(std::ranges::equal(ran, listed));
}

}  // namespace quern::test
