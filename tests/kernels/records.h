// What the tests of kernel lists share: typed buffers with guards, and bounds in units of roundoff.
#pragma once
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "built_isa.h"
#include "quern/tensor/cpu_features.h"
#include "quern/tensor/dtype.h"

namespace quern::test {

inline constexpr double kRoundoff = 0x1p-24;  // of f32: half the distance from 1 to the next

/// n elements of a dtype at an address that no vector is aligned to, between guards that must
/// survive.
class Buffer {
 public:
  Buffer(DType dtype, int64_t n) : dtype_(dtype), n_(n), bytes_(kGuard * 2 + size(), kPattern) {}
  Buffer(DType dtype, const std::vector<double>& values)
      : Buffer(dtype, static_cast<int64_t>(values.size())) {
    visit_dtype(dtype_, [&]<class T>(std::type_identity<T>) {
      for (size_t i = 0; i < values.size(); ++i) store(i, static_cast<T>(values[i]));
    });
  }
  void* data() { return bytes_.data() + kGuard; }
  void* at(int64_t i) { return static_cast<char*>(data()) + i * itemsize(dtype_); }
  double operator[](int64_t i) {
    return visit_dtype(dtype_, [&]<class T>(std::type_identity<T>) {
      return static_cast<double>(load<T>(static_cast<size_t>(i)));
    });
  }
  void set(int64_t i, double x) {
    visit_dtype(dtype_, [&]<class T>(std::type_identity<T>) {
      store(static_cast<size_t>(i), static_cast<T>(x));
    });
  }
  std::vector<double> values() {
    std::vector<double> all(static_cast<size_t>(n_));
    visit_dtype(dtype_, [&]<class T>(std::type_identity<T>) {
      for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<double>(load<T>(i));
    });
    return all;
  }
  bool guarded() const {
    const auto intact = [&](size_t begin) {
      for (size_t i = begin; i < begin + kGuard; ++i)
        if (bytes_[i] != kPattern) return false;
      return true;
    };
    return intact(0) && intact(kGuard + size());
  }

 private:
  static constexpr size_t kGuard =
      72;  // 8 bytes past a cache line: aligned for f64, not for vectors
  static constexpr char kPattern = 0x5a;
  size_t size() const { return static_cast<size_t>(n_ * itemsize(dtype_)); }
  template <class T>
  T load(size_t i) const {
    T value;
    std::memcpy(static_cast<void*>(&value), bytes_.data() + kGuard + i * sizeof(T), sizeof(T));
    return value;
  }
  template <class T>
  void store(size_t i, T value) {
    std::memcpy(bytes_.data() + kGuard + i * sizeof(T), static_cast<const void*>(&value),
                sizeof(T));
  }
  DType dtype_;
  int64_t n_;
  std::vector<char> bytes_;
};

/// Is `got`, of this dtype, within `bound` roundoffs (absolute: times kRoundoff) of `expected`,
/// before it was rounded to bf16? Infinities, NaN and zeros (sign included) must be the same; what
/// is below the normal range may be flushed.
inline bool close(double got, double expected, double bound, DType dtype) {
  if (std::isnan(expected)) return std::isnan(got);
  const double rounded = static_cast<double>(static_cast<float>(expected));
  if (std::isinf(rounded)) return got == rounded;
  if (expected == 0) return got == 0 && std::signbit(got) == std::signbit(expected);
  const double final_rounding = dtype == DType::bf16 ? 0x1p-8 * std::abs(expected) : 0;
  constexpr double kSmallest = 0x1p-126;
  return std::abs(got - expected) <= bound * kRoundoff * 1.0001 + final_rounding + kSmallest;
}

/// The record of a list with this name.
template <class List>
const auto& named(const List& list, std::string_view name) {
  for (const auto* record : list)
    if (record->name == name) return *record;
  throw Error("no such record");
}

/// Calls f on the records that fit and that this CPU can run, of which there must be one; says how
/// many it cannot.
template <class List, class Fits, class F>
void each_runnable(const List& list, Fits fits, F f) {
  int ran = 0, skipped = 0;
  for (const auto* record : list) {
    if (!fits(*record)) continue;
    if (!cpu_has(record->isa)) {
      ++skipped;
      continue;
    }
    ++ran;
    CAPTURE(std::string(record->name));
    f(*record);
  }
  if (skipped > 0) MESSAGE(skipped, " records need an ISA that this CPU has not");
  CHECK(ran > 0);
}

template <class List, class F>
void each_runnable(const List& list, F f) {
  each_runnable(
      list, [](const auto&) { return true; }, f);
}

}  // namespace quern::test
