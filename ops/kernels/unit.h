// A unit of kernels is a source file compiled for one instruction set, or for any CPU.
// kernels.cmake, which lists them, tells each by QUERN_UNIT how its name ends (avx512, portable,
// reference) and by QUERN_ISA which Isa that is. Seen by files with ISA flags.
#pragma once
#include "quern/tensor/types.h"

namespace quern::kernels {

/// The records of one kind that a unit holds, best first.
template <class Kernel>
struct UnitRecords {
  template <int n>
  constexpr UnitRecords(const Kernel (&all)[n]) : records(all), count(n) {}
  const Kernel* records;
  int count;
};

#ifdef QUERN_UNIT
namespace {
[[maybe_unused]] constexpr Isa kIsa = Isa::QUERN_ISA;
}
#endif

#define QUERN_PASTE_(a, b) a##_##b
#define QUERN_PASTE(a, b) QUERN_PASTE_(a, b)
#define QUERN_STRING_(a) #a
#define QUERN_STRING(a) QUERN_STRING_(a)

/// The name of a record: what it does, and its unit.
#define QUERN_NAMED(what) what "_" QUERN_STRING(QUERN_UNIT)

/// Defines the table `<family>_<unit>` of an array of records.
#define QUERN_KERNELS(Kernel, family, records)                      \
  extern const UnitRecords<Kernel> QUERN_PASTE(family, QUERN_UNIT); \
  constinit const UnitRecords<Kernel> QUERN_PASTE(family, QUERN_UNIT){records};

}  // namespace quern::kernels
