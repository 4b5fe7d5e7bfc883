// Which instruction sets may be used: what the CPU and the system have, capped by
// QUERN_MAX_CPU_ISA.
#pragma once
#include <string>
#include <string_view>

#include "quern/tensor/types.h"

namespace quern {

std::string_view to_string(Isa isa);  ///< "portable", "avx2", ..., "sve_bf16"
/// Error: a name that is none of this architecture's.
Isa isa_from_string(std::string_view name);

/// Has the CPU it, with the system's leave (saved registers; permission for AMX's tiles, which is
/// asked for once, and not while the cap is below)? Ignores the cap.
bool cpu_has(Isa isa);
/// cpu_has(isa) and not above the cap.
bool isa_enabled(Isa isa);
/// Why isa_enabled() is false: "CPU has no amx", "the system withholds amx" (saves no registers of
/// it, or gives no permission), "QUERN_MAX_CPU_ISA=avx2"; empty if it is true.
std::string why_disabled(Isa isa);
/// The best enabled one.
Isa max_isa();

/// The cap: QUERN_MAX_CPU_ISA at first use, later what was set here.
/// Error (at first use): a name that is none of this architecture's.
Isa isa_cap();
void set_isa_cap(Isa isa);  ///< for all threads

/// Does a bf16 instruction multiply faster than an f32 one, on this CPU and under the cap?
bool has_bf16_arithmetic();

/// Bits of an SVE vector; 128 where there are none.
int sve_bits();

std::string cpu_name();  ///< the model's brand string

/// Bytes of a core's data caches and of the third one, which a group of cores shares, for block
/// sizes: 32 KiB, 1 MiB and 16 MiB where the system does not tell.
struct CacheSizes {
  int64_t l1d, l2, l3;  ///< bytes
};
CacheSizes cache_sizes();  ///< of this machine

/// Do all cores of a socket share its third-level cache over a mesh, as Intel's do, not a few
/// cores one of their own? Such a cache is large, and slow to read line by line.
bool l3_is_mesh();

}  // namespace quern
