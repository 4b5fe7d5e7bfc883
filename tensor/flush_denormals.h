// How denormals are treated while kernels compute.
#pragma once
#include <cstdint>

#ifdef __SSE__
#include <xmmintrin.h>
#endif

namespace quern {

/// While it lives, denormals are read and written as zero: an operation on one takes over a hundred
/// cycles, and training meets many (momenta and second moments that die away, gradients of
/// saturated units).
class FlushDenormals {
 public:
  FlushDenormals() : before_(read()) { write(before_ | kFlush); }
  ~FlushDenormals() { write(before_); }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
#if defined(__SSE__)
  static constexpr unsigned kFlush = 0x8040;  // MXCSR: flush to zero, denormals are zero
  static unsigned read() { return _mm_getcsr(); }
  static void write(unsigned mode) { _mm_setcsr(mode); }
  unsigned before_;
#elif defined(__aarch64__)
  static constexpr uint64_t kFlush = 1 << 24;  // FPCR.FZ: both
  static uint64_t read() {
    uint64_t mode;
    asm volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
  }
  static void write(uint64_t mode) { asm volatile("msr fpcr, %0" ::"r"(mode)); }
  uint64_t before_;
#else
  static constexpr int kFlush = 0;  // no such mode known
  static int read() { return 0; }
  static void write(int) {}
  int before_;
#endif
};

}  // namespace quern
