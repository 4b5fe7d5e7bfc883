// Emulated CPUs are far slower than real ones. There, the longest tests take fewer cases of each
// kernel, but all kernels that are the CPU's own; tests/CMakeLists.txt chooses the CPUs.
#pragma once

namespace quern::test {

inline constexpr bool kEmulatedCpu = sizeof(QUERN_EMULATOR) > 1;

}  // namespace quern::test
