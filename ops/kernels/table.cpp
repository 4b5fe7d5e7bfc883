// The tables, from the lists that the build makes of kernels.cmake.
#include "quern/ops/kernels/table.h"

#include <deque>
#include <vector>

#include "contracts.inc"

namespace quern::kernels {

#define QUERN_TABLE(Kernel, family, unit) extern const UnitRecords<Kernel> family##_##unit;
#define QUERN_KIND(Kernel)
#include "tables.inc"
#undef QUERN_TABLE
#undef QUERN_KIND

namespace {

template <class Kernel>
const Kernel* fitted(const Kernel& record) {
  return &record;
}
/// To the length of this CPU's vectors.
const GemmKernel* fitted(const GemmKernel& record) {
  if (!record.scalable) return &record;
  static std::deque<GemmKernel> copies;
  GemmKernel& copy = copies.emplace_back(record);
  copy.nr = record.nr * sve_bits() / 128;
  return &copy;
}

template <class Kernel>
void append(std::vector<const Kernel*>& list, const UnitRecords<Kernel>& unit) {
  for (int i = 0; i < unit.count; ++i) list.push_back(fitted(unit.records[i]));
}
template <class Kernel, class Other>
void append(std::vector<const Kernel*>&, const UnitRecords<Other>&) {}

}  // namespace

template <class Kernel>
std::span<const Kernel* const> table() {
  static const auto all = [] {
    std::vector<const Kernel*> list;
#define QUERN_TABLE(Of, family, unit) append(list, family##_##unit);
#define QUERN_KIND(Of)
#include "tables.inc"
#undef QUERN_TABLE
#undef QUERN_KIND
    return list;
  }();
  return all;
}

#define QUERN_TABLE(Kernel, family, unit)
#define QUERN_KIND(Kernel) template std::span<const Kernel* const> table();
#include "tables.inc"

}  // namespace quern::kernels
