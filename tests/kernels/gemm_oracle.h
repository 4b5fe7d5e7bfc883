// Random operands of a GEMM and what the tests hold a kernel to: an f64 sum and a bound on its
// rounding.
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <cfloat>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "quern/ops/kernels/gemm/gemm_kernel.h"
#include "quern/tensor/dtype.h"

namespace quern::test {

/// Elements of any floating dtype that end where an inaccessible page begins: a vector instruction
/// that reads or writes beyond the last one crashes, which sanitizers, blind to intrinsics, may
/// miss.
class Elements {
 public:
  Elements(DType dtype, int64_t count) : dtype_(dtype), count_(count) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const auto bytes = static_cast<size_t>(count * itemsize(dtype));
    const size_t usable = (bytes + page - 1) / page * page;
    void* pages =
        mmap(nullptr, usable + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(pages != MAP_FAILED, "test", "mmap: no memory");
    pages_ = {static_cast<std::byte*>(pages), Unmap{usable + page}};
    check(mprotect(pages_.get() + usable, page, PROT_NONE) == 0, "test", "mprotect failed");
    bytes_ = pages_.get() + usable - bytes;
  }

  void* data() const { return bytes_; }
  void* at(int64_t i) const { return bytes_ + i * itemsize(dtype_); }
  int64_t count() const { return count_; }
  double get(int64_t i) const {
    return visit_floating("test", dtype_, [&]<class T>(std::type_identity<T>) {
      T value;
      std::memcpy(static_cast<void*>(&value), at(i), sizeof value);
      return static_cast<double>(value);
    });
  }
  void set(int64_t i, double to) {
    visit_floating("test", dtype_, [&]<class T>(std::type_identity<T>) {
      const T value(static_cast<T>(to));
      std::memcpy(at(i), static_cast<const void*>(&value), sizeof value);
    });
  }
  void fill(double value) {
    for (int64_t i = 0; i < count_; ++i) set(i, value);
  }
  /// Uniform on [-1, 1), rounded to the dtype.
  void fill_random(uint32_t seed) {
    visit_floating("test", dtype_, [&]<class T>(std::type_identity<T>) {
      uint64_t state = seed * 0x9E3779B97F4A7C15;
      for (int64_t i = 0; i < count_; ++i) {
        state = state * 6364136223846793005 + 1442695040888963407;
        const T value(
            static_cast<T>(static_cast<double>(static_cast<int64_t>(state) >> 11) * 0x1p-52));
        std::memcpy(at(i), static_cast<const void*>(&value), sizeof value);
      }
    });
  }
  std::vector<double> values() const {
    std::vector<double> all(static_cast<size_t>(count_));
    visit_floating("test", dtype_, [&]<class T>(std::type_identity<T>) {
      for (size_t i = 0; i < all.size(); ++i) {
        T value;
        std::memcpy(static_cast<void*>(&value), at(static_cast<int64_t>(i)), sizeof value);
        all[i] = static_cast<double>(value);
      }
    });
    return all;
  }

 private:
  struct Unmap {
    size_t bytes;
    void operator()(std::byte* pages) const { munmap(pages, bytes); }
  };

  DType dtype_;
  int64_t count_;
  std::unique_ptr<std::byte, Unmap> pages_;
  std::byte* bytes_;
};

/// Half the distance between 1 and the next number: what one rounding costs, relatively.
inline double unit_roundoff(DType dtype) {
  return dtype == DType::f64 ? DBL_EPSILON / 2 : dtype == DType::f32 ? FLT_EPSILON / 2 : 0x1p-8;
}

/// A sum of products and the sum of their magnitudes.
struct Sum {
  double value = 0, magnitude = 0;
  void add(double product) {
    value += product;
    magnitude += std::fabs(product);
  }
  /// However `terms` products and additions are ordered, each term meets at most one rounding by
  /// its multiplication and one an addition: |error| <= γ(terms + 1)·Σ|terms|, γ(n) = n·u / (1 -
  /// n·u) (Higham, "Accuracy and stability of numerical algorithms", 3.1). vdpbf16ps and tdpbf16ps
  /// round no oftener but flush what is below the smallest normal number, once a product or sum. In
  /// f64 the oracle itself errs as much.
  double bound(DType accumulator, int64_t terms) const {
    const double n = static_cast<double>(terms + 1), u = unit_roundoff(accumulator);
    const double gamma = n * u / (1 - n * u);
    return (accumulator == DType::f64 ? 2 : 1) * gamma * magnitude + 2 * n * FLT_MIN;
  }
};

}  // namespace quern::test
