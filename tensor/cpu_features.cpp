#include "quern/tensor/cpu_features.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "quern/tensor/check.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#endif

namespace quern {
namespace {

constexpr std::array<std::string_view, 5> kNames = {"portable", "avx2", "avx512", "avx512_bf16",
                                                    "amx"};

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

/// Linux gives a process its tile registers only on request.
bool tiles_permitted() {
#ifdef __linux__
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

/// The best of Isa, each of which contains those before it.
Isa detect() {
  const Registers one = cpuid(1);
  if (!has_bits(one.ecx, {27, 28, 12, 29})) return Isa::portable;  // osxsave, avx, fma, f16c
  const uint64_t saved = saved_registers();
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
  return cpuid(0x1d).eax >= 1 && expected && tiles_permitted() ? Isa::amx : Isa::avx512_bf16;
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

#else

Isa detect() { return Isa::portable; }
std::string brand() { return "unknown CPU"; }

#endif

Isa best() {
  static const Isa isa = detect();
  return isa;
}

constexpr int kUnset = -1;
std::atomic<int> cap{kUnset};

Isa parse(std::string_view argument, std::string_view name) {
  for (size_t i = 0; i < kNames.size(); ++i)
    if (kNames[i] == name) return static_cast<Isa>(i);
  fail("isa",
       fmt::format("{}: expected one of {}, got \"{}\"", argument, fmt::join(kNames, ", "), name));
}

}  // namespace

std::string_view to_string(Isa isa) { return kNames[static_cast<size_t>(isa)]; }

Isa isa_from_string(std::string_view name) { return parse("name", name); }

bool cpu_has(Isa isa) { return isa <= best(); }
bool isa_enabled(Isa isa) { return isa <= max_isa(); }

std::string why_disabled(Isa isa) {
  if (!cpu_has(isa)) return fmt::format("CPU has no {}", to_string(isa));
  if (isa > isa_cap()) return fmt::format("QUERN_MAX_CPU_ISA={}", to_string(isa_cap()));
  return {};
}

Isa max_isa() { return std::min(best(), isa_cap()); }

Isa isa_cap() {
  int now = cap.load(std::memory_order_relaxed);
  if (now == kUnset) {
    const char* name = std::getenv("QUERN_MAX_CPU_ISA");
    const bool named = name != nullptr && *name != '\0';
    now = static_cast<int>(named ? parse("QUERN_MAX_CPU_ISA", name) : Isa::amx);
    cap.store(now, std::memory_order_relaxed);
  }
  return static_cast<Isa>(now);
}

void set_isa_cap(Isa isa) { cap.store(static_cast<int>(isa), std::memory_order_relaxed); }

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

}  // namespace quern
