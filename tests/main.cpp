// The entry point of every test program: says what it runs on, and refuses a cap that the CPU
// lacks, so that a run under QUERN_MAX_CPU_ISA is either of that instruction set or shown as
// skipped; with --capped a cap that is the CPU's best, too, which a run without one is of.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>
#include <fmt/core.h>

#include <cstdlib>
#include <string_view>

#include "quern/tensor/cpu_features.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
/// clang's OpenMP keeps what its threads asked for.
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() { return "leak:libomp"; }
#endif
#endif

namespace {

bool is_best(quern::Isa cap) {
  quern::set_isa_cap(quern::Isa::sve_bf16);  // none
  const bool best = quern::max_isa() == cap;
  quern::set_isa_cap(cap);
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  const char* cap = std::getenv("QUERN_MAX_CPU_ISA");
  if (cap != nullptr && *cap != '\0') {
    const quern::Isa isa = quern::isa_cap();
    const bool capped = argc > 1 && std::string_view(argv[1]) == "--capped";
    if (!quern::cpu_has(isa)) {
      fmt::print("skipped: CPU has no {}\n", quern::to_string(isa));
      return 0;
    }
    if (capped && is_best(isa)) {
      fmt::print("skipped: CPU has nothing better than {}\n", quern::to_string(isa));
      return 0;
    }
  }
  fmt::print("{}, up to {}\n", quern::cpu_name(), quern::to_string(quern::max_isa()));
  doctest::Context context(argc, argv);
  return context.run();
}
