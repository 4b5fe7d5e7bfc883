#include "quern/tensor/cpu_features.h"

#include <doctest/doctest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "quern/tensor/check.h"
#include "run_self.h"

using namespace quern;

namespace {

#ifdef __aarch64__
constexpr Isa kIsas[] = {Isa::portable, Isa::neon, Isa::neon_bf16, Isa::sve, Isa::sve_bf16};
constexpr const char* kNames = "portable, neon, neon_bf16, sve, sve_bf16";
constexpr const char* kOther = "avx2";
#else
constexpr Isa kIsas[] = {Isa::portable, Isa::avx2, Isa::avx512, Isa::avx512_bf16, Isa::amx};
constexpr const char* kNames = "portable, avx2, avx512, avx512_bf16, amx";
constexpr const char* kOther = "neon";
#endif

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
  CHECK(to_string(Isa::sve_bf16) == "sve_bf16");
  CHECK_THROWS_WITH_AS(isa_from_string("sse9"),
                       fmt::format("[isa] name: expected one of {}, got \"sse9\"", kNames).c_str(),
                       Error);
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
        const std::string withheld = fmt::format("the system withholds {}", to_string(isa));
        if (why_disabled(isa) != withheld)
          CHECK(why_disabled(isa) == fmt::format("CPU has no {}", to_string(isa)));
      }
    }
    CHECK(isa_enabled(max_isa()));
    CHECK(max_isa() <= limit);
  }
  CHECK(cpu_has(Isa::portable));
}

#ifdef __x86_64__
TEST_CASE("isa: agrees with what the kernel lists") {
  std::ifstream cpuinfo("/proc/cpuinfo");
  std::string line;
  while (std::getline(cpuinfo, line) && !line.starts_with("flags")) continue;
  if (!line.starts_with("flags")) {
    MESSAGE("skipped: no flags in /proc/cpuinfo");
    return;
  }
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
#endif

#if defined(__x86_64__) && defined(__linux__)
TEST_CASE("child: tiles" * doctest::skip()) {
  unsigned long permitted = 0;
  const bool before =
      (max_isa(), syscall(SYS_arch_prctl, 0x1022, &permitted) == 0) &&  // ARCH_GET_XCOMP_PERM
      (permitted >> 18 & 1) != 0;
  set_isa_cap(Isa::amx);
  max_isa();
  const bool after = syscall(SYS_arch_prctl, 0x1022, &permitted) == 0 && (permitted >> 18 & 1) != 0;
  fmt::print("tiles: {} {}\n", before, after);
}

TEST_CASE("isa: no permission for tiles is asked for under a lower cap, and one when that rises") {
  if (!cpu_has(Isa::amx)) {
    MESSAGE("skipped: CPU has no amx");
    return;
  }
  CHECK(test::contains(test::run_self("QUERN_MAX_CPU_ISA=avx512", "child: tiles"),
                       "tiles: false true"));
}
#endif

TEST_CASE("isa: is what the emulator was asked for") {
  // QEMU's CPUs, by the names that tests/CMakeLists.txt gives them.
  struct Cpu {
    std::string_view name;
    bool bf16;
    int sve_bits;
  };
  constexpr Cpu kCpus[] = {{"cortex-a72", false, 0},
                           {"max,sve=off", true, 0},
                           {"max,sve-max-vq=1", true, 128},
                           {"max,sve-max-vq=2", true, 256},
                           {"max,sve-max-vq=4", true, 512},
                           {"max,sve-default-vector-length=128", true, 1024},
                           {"a64fx", false, 512}};
  const char* emulated = std::getenv("QEMU_CPU");
  if (emulated == nullptr) {
    MESSAGE("skipped: no emulated CPU");
    return;
  }
  int known = 0;
  for (const Cpu& cpu : kCpus) {
    if (cpu.name != emulated) continue;
    ++known;
    const bool sve = cpu.sve_bits > 0 && cpu.sve_bits <= 512;
    CHECK(cpu_has(Isa::neon));
    CHECK(cpu_has(Isa::neon_bf16) == cpu.bf16);
    CHECK(cpu_has(Isa::sve) == sve);
    CHECK(cpu_has(Isa::sve_bf16) == (sve && cpu.bf16));
    CHECK(sve_bits() == std::max(cpu.sve_bits, 128));
  }
  CHECK(known == 1);
}

TEST_CASE("child: cap" * doctest::skip()) { fmt::print("cap: {}\n", to_string(isa_cap())); }

TEST_CASE("isa: QUERN_MAX_CPU_ISA") {
  using test::contains, test::run_self;
  CHECK(contains(run_self("QUERN_MAX_CPU_ISA=portable", "child: cap"), "cap: portable\n"));
  CHECK(contains(run_self("env -u QUERN_MAX_CPU_ISA", "child: cap"),
                 fmt::format("cap: {}\n", to_string(std::end(kIsas)[-1]))));
  CHECK(contains(
      run_self(fmt::format("QUERN_MAX_CPU_ISA={}", kOther), "child: cap"),
      fmt::format("[isa] QUERN_MAX_CPU_ISA: expected one of {}, got \"{}\"", kNames, kOther)));
}

TEST_CASE("cpu: name and caches") {
  CHECK_FALSE(cpu_name().empty());
  CHECK(cache_sizes().l1d >= 8 << 10);
  CHECK(cache_sizes().l2 > cache_sizes().l1d);
  CHECK(cache_sizes().l3 > 0);
}
