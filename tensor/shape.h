// Shapes and strides: up to eight int64 without an allocation.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "quern/tensor/check.h"
#include "quern/tensor/memory_format.h"
#include "quern/tensor/text_formatter.h"

namespace quern {

inline constexpr int kMaxDims = 8;  ///< that a tensor may have

/// Up to kMaxDims numbers in place: a vector that allocates nothing. Error of what would make it
/// longer.
class Dims {
 public:
  Dims() = default;
  /// `Dims{16, 64, 56, 56}`
  Dims(std::initializer_list<int64_t> values) : Dims(std::span(values.begin(), values.size())) {}
  /// A copy of `values`.
  explicit Dims(std::span<const int64_t> values) : size_(static_cast<int>(values.size())) {
    check(values.size() <= kMaxDims, "shape", "dimensions: expected at most {}, got {}", kMaxDims,
          values.size());
    std::copy(values.begin(), values.end(), data_.begin());
  }
  /// `size` copies of `value`.
  static Dims filled(int size, int64_t value) {
    Dims dims;
    for (int i = 0; i < size; ++i) dims.push_back(value);
    return dims;
  }

  int size() const { return size_; }         ///< how many there are
  bool empty() const { return size_ == 0; }  ///< as the shape of a single number is
  /// The i-th, from 0; unchecked.
  int64_t& operator[](int i) { return data_[static_cast<size_t>(i)]; }
  int64_t operator[](int i) const { return data_[static_cast<size_t>(i)]; }
  /// The first; with end() what algorithms walk.
  int64_t* begin() { return data_.data(); }
  const int64_t* begin() const { return data_.data(); }
  /// Beyond the last.
  int64_t* end() { return data_.data() + size_; }
  const int64_t* end() const { return data_.data() + size_; }
  int64_t back() const { return (*this)[size_ - 1]; }  ///< the last; there is one

  /// Appends. Error: there are kMaxDims already.
  void push_back(int64_t value) {
    check(size_ < kMaxDims, "shape", "dimensions: expected at most {}, got {}", kMaxDims,
          size_ + 1);
    data_[static_cast<size_t>(size_++)] = value;
  }
  /// Puts `value` before the one at `at`, as push_back().
  void insert(int at, int64_t value) {
    push_back(value);
    std::rotate(begin() + at, end() - 1, end());
  }
  /// Takes the one at `at` away.
  void erase(int at) {
    std::copy(begin() + at + 1, end(), begin() + at);
    --size_;
  }
  /// As many, and the same?
  friend bool operator==(const Dims& a, const Dims& b) { return std::ranges::equal(a, b); }

 private:
  std::array<int64_t, kMaxDims> data_{};
  int size_ = 0;
};

using Shape = Dims;    ///< elements a dimension, outermost first
using Strides = Dims;  ///< distance in elements between neighbours along each dimension

/// "[16,64,56,56]"
std::string to_string(const Dims& dims);

/// Number of elements of `shape` (1 for the empty shape). Errors: a negative size; a product, zeros
/// left out, whose size in bytes at 8 an element does not fit an int64.
int64_t numel(const Shape& shape);

/// Strides of a dense tensor of this shape. Error: channels_last of other than 4 dimensions.
Strides dense_strides(const Shape& shape, MemoryFormat format);

/// Row-major ones.
inline Strides contiguous_strides(const Shape& shape) {
  return dense_strides(shape, MemoryFormat::contiguous);
}

/// Those of what is stored as N, H, W, C while its shape stays [N, C, H, W].
inline Strides channels_last_strides(const Shape& shape) {
  return dense_strides(shape, MemoryFormat::channels_last);
}

/// The shape two operands broadcast to, by NumPy's rule. Error: sizes differ and neither is 1.
Shape broadcast_shapes(std::string_view op, const Shape& a, const Shape& b);

/// Maps -rank..rank-1 to 0..rank-1; anything else is an error of `op`.
int normalize_dim(std::string_view op, int64_t dim, int rank);

}  // namespace quern

template <>
struct fmt::formatter<quern::Dims> : quern::TextFormatter<quern::Dims> {};
