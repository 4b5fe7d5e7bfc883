// The entry point of every test program: says what it runs on, and refuses a cap that the CPU
// lacks, so that a run under QUERN_MAX_CPU_ISA is either of that instruction set or shown as
// skipped.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>
#include <fmt/core.h>

#include <cstdlib>

#include "quern/tensor/cpu_features.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
/// clang's OpenMP keeps what its threads asked for.
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() { return "leak:libomp"; }
#endif
#endif

int main(int argc, char** argv) {
  const char* cap = std::getenv("QUERN_MAX_CPU_ISA");
  if (cap != nullptr && *cap != '\0' && !quern::cpu_has(quern::isa_cap())) {
    fmt::print("skipped: CPU has no {}\n", quern::to_string(quern::isa_cap()));
    return 0;
  }
  fmt::print("{}, up to {}\n", quern::cpu_name(), quern::to_string(quern::max_isa()));
  doctest::Context context(argc, argv);
  return context.run();
}
