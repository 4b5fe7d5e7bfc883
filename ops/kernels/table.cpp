// The tables, from the lists that the build makes of kernels.cmake.
#include "quern/ops/kernels/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "quern/tensor/check.h"

#include "contracts.inc"

namespace quern::kernels {

#define QUERN_KIND(Kernel, ...) extern const UnitRecords<Kernel> __VA_ARGS__;
#include "tables.inc"
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

/// Those of a kind that come from outside, until its table is made.
template <class Kernel>
struct Added {
  std::vector<const Kernel*> records;
  bool too_late = false;
};
template <class Kernel>
Added<Kernel>& added() {
  static Added<Kernel> of_kind;
  return of_kind;
}

template <class Kernel>
std::vector<const Kernel*> joined(std::initializer_list<UnitRecords<Kernel>> units) {
  std::vector<const Kernel*> list;
  for (const UnitRecords<Kernel>& unit : units)
    for (int i = 0; i < unit.count; ++i) list.push_back(fitted(unit.records[i]));
  for (const Kernel* record : added<Kernel>().records) list.push_back(record);
  return list;
}
/// All of a kind, in the order of the lists.
template <class Kernel>
std::vector<const Kernel*> listed();
#define QUERN_KIND(Kernel, ...)           \
  template <>                             \
  std::vector<const Kernel*> listed() {   \
    return joined<Kernel>({__VA_ARGS__}); \
  }
#include "tables.inc"
#undef QUERN_KIND

/// QUERN_KERNEL: "" where unset, else the name of a record of some kind.
std::string_view asked_kernel() {
  static const std::string asked = [] {
    const char* value = std::getenv("QUERN_KERNEL");
    const std::string name = value ? value : "";
    if (name.empty()) return name;
    std::vector<std::string_view> names;
#define QUERN_KIND(Kernel, ...) \
  for (const Kernel* record : listed<Kernel>()) names.push_back(record->name);
#include "tables.inc"
#undef QUERN_KIND
    if (std::ranges::count(names, name) == 0)
      fail("dispatch", fmt::format("QUERN_KERNEL: expected a kernel, got \"{}\"; there are {}",
                                   name, fmt::join(names, ", ")));
    return name;
  }();
  return asked;
}

}  // namespace

template <class Kernel>
std::span<const Kernel* const> table() {
  static const auto all = [] {
    const std::string_view name = asked_kernel();
    std::vector<const Kernel*> list = listed<Kernel>();
    for (size_t i = 0; i < list.size(); ++i)
      if (list[i]->name == name)
        for (size_t j = i; j > 0; --j) std::swap(list[j], list[j - 1]);  // to the front
    added<Kernel>().too_late = true;
    return list;
  }();
  return all;
}

template <class Kernel>
void add_kernel(const Kernel& record) {
  check(!added<Kernel>().too_late, "dispatch",
        "add_kernel: {} comes after the first use of its table", record.name);
  added<Kernel>().records.push_back(&record);
}

#define QUERN_KIND(Kernel, ...)                    \
  template std::span<const Kernel* const> table(); \
  template void add_kernel(const Kernel& record);
#include "tables.inc"

}  // namespace quern::kernels
