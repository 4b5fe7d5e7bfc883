#include "quern/tensor/cpu_features.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <vector>

#include "quern/tensor/check.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace quern {
namespace {

constexpr std::array<std::string_view, 9> kNames = {
    "portable", "avx2", "avx512", "avx512_bf16", "amx", "neon", "neon_bf16", "sve", "sve_bf16"};

/// A set of Isas, one bit each.
using IsaSet = uint32_t;
constexpr IsaSet bit(Isa isa) { return IsaSet{1} << static_cast<int>(isa); }
constexpr IsaSet up_to(Isa isa) { return 2 * bit(isa) - 1; }
[[maybe_unused]] constexpr IsaSet kX86 = up_to(Isa::amx);
[[maybe_unused]] constexpr IsaSet kArm = bit(Isa::portable) | (up_to(Isa::sve_bf16) & ~kX86);

#if defined(__x86_64__)

struct Registers {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Registers cpuid(unsigned leaf, unsigned subleaf = 0) {
  Registers r;
  __get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx,
                    &r.edx);  // zeros where the leaf is missing
  return r;
}

constexpr bool has_bits(uint64_t value, std::initializer_list<int> bits) {
  for (int bit : bits)
    if ((value >> bit & 1) == 0) return false;
  return true;
}

/// XCR0: the register sets that the system saves when it switches threads.
uint64_t saved_registers() {
  unsigned low = 0, high = 0;
  asm("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t{high} << 32 | low;
}

/// Linux gives a process its tile registers only on request, for good, and from then on its signal
/// stacks have to be larger: asked for when AMX is wanted.
bool tiles_permitted() {
#ifdef __linux__
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;
  static const bool permitted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return permitted;
#else
  return false;
#endif
}

constexpr IsaSet kBuiltFor = kX86;

/// Each contains those before it: the best that the CPU has, and whose registers are `saved_by()`.
Isa detect_best(uint64_t (*saved_by)()) {
  const Registers one = cpuid(1);
  if (!has_bits(one.ecx, {27, 28, 12, 29})) return Isa::portable;  // osxsave, avx, fma, f16c
  const uint64_t saved = saved_by();
  const Registers seven = cpuid(7);
  if (!has_bits(saved, {1, 2}) || !has_bits(seven.ebx, {5}))
    return Isa::portable;  // xmm, ymm; avx2

  // Opmasks and both halves of the zmm registers; avx512 f, dq, cd, bw, vl.
  if (!has_bits(saved, {5, 6, 7}) || !has_bits(seven.ebx, {16, 17, 28, 30, 31})) return Isa::avx2;

  if (!has_bits(cpuid(7, 1).eax, {5})) return Isa::avx512;  // avx512_bf16

  // Tile configuration and data; amx-tile, amx-bf16. Palette 1 is the one our tiles are written
  // for: 8 tiles (ebx 31..16) of 16 rows (ecx 15..0) of 64 bytes (ebx 15..0).
  if (!has_bits(saved, {17, 18}) || !has_bits(seven.edx, {24, 22})) return Isa::avx512_bf16;
  const Registers palette = cpuid(0x1d, 1);
  const bool expected =
      palette.ebx >> 16 == 8 && (palette.ebx & 0xffff) == 64 && (palette.ecx & 0xffff) == 16;
  return cpuid(0x1d).eax >= 1 && expected ? Isa::amx : Isa::avx512_bf16;
}

std::string brand() {
  if (cpuid(0x80000000).eax < 0x80000004) return "x86-64";
  char text[3 * sizeof(Registers) + 1] = {};
  for (unsigned i = 0; i < 3; ++i) {
    const Registers part = cpuid(0x80000002 + i);
    std::memcpy(text + i * sizeof part, &part, sizeof part);
  }
  std::string name = text;
  name.erase(0, name.find_first_not_of(' '));
  name.erase(name.find_last_not_of(' ') + 1);
  return name;
}

IsaSet detect() { return up_to(detect_best(saved_registers)); }
/// What there would be, were all registers saved and tiles given to whoever asks.
IsaSet detect_withheld() {
  return up_to(detect_best([] { return ~uint64_t{0}; }));
}

#elif defined(__aarch64__)

constexpr IsaSet kBuiltFor = kArm;

#ifdef __linux__

IsaSet detect() {
  const unsigned long one = getauxval(AT_HWCAP), two = getauxval(AT_HWCAP2);
  IsaSet found = bit(Isa::portable);
  if (one & HWCAP_ASIMD) found |= bit(Isa::neon);
  if (two & HWCAP2_BF16) found |= bit(Isa::neon_bf16);
  // The drivers have room for tiles of 48 columns: three vectors of 512 bits, the longest yet
  // built.
  if ((one & HWCAP_SVE) && sve_bits() <= 512) {
    found |= bit(Isa::sve);
    if (two & HWCAP2_SVEBF16) found |= bit(Isa::sve_bf16);
  }
  return found;
}

std::string brand() {
  if ((getauxval(AT_HWCAP) & HWCAP_CPUID) == 0) return "AArch64";
  uint64_t midr = 0;  // the system answers in the register's stead
  asm("mrs %0, midr_el1" : "=r"(midr));
  const uint64_t maker = midr >> 24 & 0xff, part = midr >> 4 & 0xfff;
  constexpr struct {
    uint64_t maker, part;
    const char* name;
  } kKnown[] = {
      {0x41, 0xd08, "Arm Cortex-A72"},  {0x41, 0xd0c, "Arm Neoverse N1"},
      {0x41, 0xd40, "Arm Neoverse V1"}, {0x41, 0xd49, "Arm Neoverse N2"},
      {0x41, 0xd4f, "Arm Neoverse V2"}, {0x46, 0x001, "Fujitsu A64FX"},
  };
  for (const auto& known : kKnown)
    if (known.maker == maker && known.part == part) return known.name;
  return fmt::format("AArch64 (maker {:#x}, part {:#x})", maker, part);
}

#elif defined(__APPLE__)

IsaSet detect() {
  int bf16 = 0;
  size_t size = sizeof bf16;
  sysctlbyname("hw.optional.arm.FEAT_BF16", &bf16, &size, nullptr, 0);
  return bit(Isa::portable) | bit(Isa::neon) | (bf16 ? bit(Isa::neon_bf16) : 0);
}

std::string brand() {
  char text[128] = {};
  size_t size = sizeof text - 1;
  return sysctlbyname("machdep.cpu.brand_string", text, &size, nullptr, 0) == 0 ? text : "AArch64";
}

#else

IsaSet detect() { return bit(Isa::portable) | bit(Isa::neon); }
std::string brand() { return "AArch64"; }

#endif

#else

constexpr IsaSet kBuiltFor = bit(Isa::portable);
IsaSet detect() { return kBuiltFor; }
std::string brand() { return "unknown CPU"; }

#endif

#ifndef __x86_64__
bool tiles_permitted() { return false; }
IsaSet detect_withheld() { return 0; }
#endif

IsaSet found() {
  static const IsaSet isas = detect();
  return isas;
}

constexpr Isa best_of(IsaSet isas) { return static_cast<Isa>(std::bit_width(isas) - 1); }

constexpr int kUnset = -1;
std::atomic<int> cap{kUnset};

Isa parse(std::string_view argument, std::string_view name) {
  std::vector<std::string_view> names;
  for (size_t i = 0; i < kNames.size(); ++i) {
    const Isa isa = static_cast<Isa>(i);
    if ((kBuiltFor & bit(isa)) == 0) continue;
    if (kNames[i] == name) return isa;
    names.push_back(kNames[i]);
  }
  fail("isa",
       fmt::format("{}: expected one of {}, got \"{}\"", argument, fmt::join(names, ", "), name));
}

}  // namespace

std::string_view to_string(Isa isa) { return kNames[static_cast<size_t>(isa)]; }

Isa isa_from_string(std::string_view name) { return parse("name", name); }

bool cpu_has(Isa isa) {
  if ((found() & bit(isa)) == 0) return false;
  return isa != Isa::amx || isa_cap() < Isa::amx || tiles_permitted();
}
bool isa_enabled(Isa isa) { return isa <= isa_cap() && cpu_has(isa); }

std::string why_disabled(Isa isa) {
  if (!cpu_has(isa))
    return fmt::format("{} {}",
                       detect_withheld() & bit(isa) ? "the system withholds" : "CPU has no",
                       to_string(isa));
  if (isa > isa_cap()) return fmt::format("QUERN_MAX_CPU_ISA={}", to_string(isa_cap()));
  return {};
}

Isa max_isa() {
  const IsaSet below = found() & up_to(isa_cap());
  return best_of(cpu_has(best_of(below)) ? below : below & ~bit(Isa::amx));
}

Isa isa_cap() {
  int now = cap.load(std::memory_order_relaxed);
  if (now == kUnset) {
    const char* name = std::getenv("QUERN_MAX_CPU_ISA");
    const bool named = name != nullptr && *name != '\0';
    now = static_cast<int>(named ? parse("QUERN_MAX_CPU_ISA", name) : best_of(kBuiltFor));
    cap.store(now, std::memory_order_relaxed);
  }
  return static_cast<Isa>(now);
}

void set_isa_cap(Isa isa) { cap.store(static_cast<int>(isa), std::memory_order_relaxed); }

bool has_bf16_arithmetic() {
  return isa_enabled(Isa::avx512_bf16) || isa_enabled(Isa::neon_bf16) || isa_enabled(Isa::sve_bf16);
}

int sve_bits() {
#if defined(__aarch64__) && defined(__linux__)
  const int length = prctl(PR_SVE_GET_VL);  // bytes, below flags
  if (length > 0) return 8 * (length & PR_SVE_VL_LEN_MASK);
#endif
  return 128;
}

std::string cpu_name() { return brand(); }

CacheSizes cache_sizes() {
  static const CacheSizes sizes = [] {
    CacheSizes found{32 << 10, 1 << 20, 16 << 20};
#ifdef _SC_LEVEL1_DCACHE_SIZE
    if (const long bytes = sysconf(_SC_LEVEL1_DCACHE_SIZE); bytes > 0) found.l1d = bytes;
    if (const long bytes = sysconf(_SC_LEVEL2_CACHE_SIZE); bytes > 0) found.l2 = bytes;
#endif
    // sysconf tells of all groups of a socket.
    std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index3/size");  // "32768K"
    if (int64_t kilobytes = 0; file >> kilobytes && kilobytes > 0) found.l3 = kilobytes << 10;
    return found;
  }();
  return sizes;
}

bool l3_is_mesh() {
#if defined(__x86_64__)
  static const bool intel = (__builtin_cpu_init(), __builtin_cpu_is("intel") != 0);
  return intel;
#else
  return false;
#endif
}

}  // namespace quern
