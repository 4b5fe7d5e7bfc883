#include "quern/tensor/cpu_features.h"

#include <doctest/doctest.h>

#include <fstream>

#include "quern/tensor/check.h"
#include "run_self.h"

using namespace quern;

namespace {

constexpr Isa kIsas[] = {Isa::portable, Isa::avx2, Isa::avx512, Isa::avx512_bf16, Isa::amx};

/// Puts the cap back at the end of a scope.
class Cap {
 public:
  explicit Cap(Isa isa) : before_(isa_cap()) { set_isa_cap(isa); }
  ~Cap() { set_isa_cap(before_); }

 private:
  Isa before_;
};

}  // namespace

TEST_CASE("isa: names") {
  for (Isa isa : kIsas) CHECK(isa_from_string(to_string(isa)) == isa);
  CHECK(to_string(Isa::avx512_bf16) == "avx512_bf16");
  CHECK_THROWS_WITH_AS(
      isa_from_string("sse9"),
      "[isa] name: expected one of portable, avx2, avx512, avx512_bf16, amx, got \"sse9\"", Error);
}

TEST_CASE("isa: the cap lowers what is enabled, and says so") {
  for (Isa limit : kIsas) {
    const Cap cap(limit);
    CHECK(isa_cap() == limit);
    for (Isa isa : kIsas) {
      CHECK(isa_enabled(isa) == (cpu_has(isa) && isa <= limit));
      if (isa_enabled(isa)) {
        CHECK(why_disabled(isa).empty());
      } else if (cpu_has(isa)) {
        CHECK(why_disabled(isa) == fmt::format("QUERN_MAX_CPU_ISA={}", to_string(limit)));
      } else {
        CHECK(why_disabled(isa) == fmt::format("CPU has no {}", to_string(isa)));
      }
    }
    CHECK(isa_enabled(max_isa()));
    CHECK(max_isa() <= limit);
  }
  CHECK(cpu_has(Isa::portable));
}

TEST_CASE("isa: agrees with what the kernel lists") {
  std::ifstream cpuinfo("/proc/cpuinfo");
  std::string line;
  while (std::getline(cpuinfo, line) && !line.starts_with("flags")) continue;
  if (!line.starts_with("flags")) return;  // another architecture names them otherwise
  line += ' ';
  const auto has = [&](std::initializer_list<const char*> flags) {
    for (const char* flag : flags)
      if (!test::contains(line, fmt::format(" {} ", flag))) return false;
    return true;
  };
  const bool avx2 = has({"avx2", "fma", "f16c"});
  const bool avx512 = avx2 && has({"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"});
  const bool avx512_bf16 = avx512 && has({"avx512_bf16"});
  CHECK(cpu_has(Isa::avx2) == avx2);
  CHECK(cpu_has(Isa::avx512) == avx512);
  CHECK(cpu_has(Isa::avx512_bf16) == avx512_bf16);
  if (!(avx512_bf16 && has({"amx_tile", "amx_bf16"}))) CHECK_FALSE(cpu_has(Isa::amx));
}

TEST_CASE("child: cap" * doctest::skip()) { fmt::print("cap: {}\n", to_string(isa_cap())); }

TEST_CASE("isa: QUERN_MAX_CPU_ISA") {
  using test::contains, test::run_self;
  CHECK(contains(run_self("QUERN_MAX_CPU_ISA=portable", "child: cap"), "cap: portable\n"));
  CHECK(contains(run_self("env -u QUERN_MAX_CPU_ISA", "child: cap"), "cap: amx\n"));
  CHECK(
      contains(run_self("QUERN_MAX_CPU_ISA=neon", "child: cap"),
               "[isa] QUERN_MAX_CPU_ISA: expected one of portable, avx2, avx512, avx512_bf16, amx, "
               "got \"neon\""));
}

TEST_CASE("cpu: name and caches") {
  CHECK_FALSE(cpu_name().empty());
  CHECK(cache_sizes().l1d >= 8 << 10);
  CHECK(cache_sizes().l2 > cache_sizes().l1d);
  CHECK(cache_sizes().l3 > 0);
}
