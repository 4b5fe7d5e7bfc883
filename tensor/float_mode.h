// The floating-point modes that threads compute in.
#pragma once
#include <cstdint>

#ifdef __SSE__
#include <xmmintrin.h>
#endif

namespace quern {

/// While it lives, this thread computes in `mode`.
class FloatMode {
 public:
#if defined(__SSE__)
  using Mode = unsigned;  // MXCSR
  static Mode current() { return _mm_getcsr(); }
#elif defined(__aarch64__)
  using Mode = uint64_t;  // FPCR
  static Mode current() {
    Mode mode;
    asm volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
  }
#else
  using Mode = int;  // none known
  static Mode current() { return 0; }
#endif

  explicit FloatMode(Mode mode) { set(mode); }
  ~FloatMode() { set(before_); }
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

 private:
#if defined(__SSE__)
  static void set(Mode mode) { _mm_setcsr(mode); }
#elif defined(__aarch64__)
  static void set(Mode mode) { asm volatile("msr fpcr, %0" ::"r"(mode)); }
#else
  static void set(Mode) {}
#endif

  const Mode before_ = current();
};

/// What kernels expect, whatever their caller has set:
/// - denormals are read and written as zero: many CPUs leave an operation on one to slow microcode,
///   and training meets many (momenta and second moments that die away, gradients of saturated
///   units);
/// - rounding is to nearest even: a worker's cells come out as the caller's;
/// - no exception traps: lanes that nobody asked for may hold anything.
class KernelFloatMode : FloatMode {
 public:
  KernelFloatMode() : FloatMode(kMode) {}

 private:
#if defined(__SSE__)
  static constexpr Mode kMode = 0x9fc0;  // flush to zero, denormals are zero, all exceptions masked
#elif defined(__aarch64__)
  static constexpr Mode kMode = 1 << 24;  // FZ: both
#else
  static constexpr Mode kMode = 0;
#endif
};

}  // namespace quern
