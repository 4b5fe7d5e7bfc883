// What tests of differentiable ops share: random f64 tensors, gradcheck as an assertion, and
// distances.
#pragma once
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "quern/autograd/gradcheck.h"
#include "quern/tensor/random.h"
#include "quern/tensor/raw.h"
#include "quern/tensor/tensor.h"

namespace quern::test {

/// Uniform on [low, high), told by the seed alone: the same values in any format, f32 and bf16
/// rounded.
inline Tensor random(const Shape& shape, uint64_t seed, DType dtype = DType::f64,
                     MemoryFormat format = MemoryFormat::contiguous, double low = -1,
                     double high = 1) {
  Tensor values = empty(shape, DType::f64);
  Generator generator(seed);
  uniform_(values, low, high, generator);
  Tensor t = empty(shape, dtype, format);
  raw::copy_(t, values);
  return t;
}

/// An f64 leaf for gradcheck.
inline Tensor leaf(const Shape& shape, uint64_t seed,
                   MemoryFormat format = MemoryFormat::contiguous, double low = -1,
                   double high = 1) {
  return random(shape, seed, DType::f64, format, low, high).requires_grad_();
}

/// The same values as a strided view: every second element along each dimension of a larger tensor,
/// in reverse order of dimensions, with NaN between them.
inline Tensor strided(const Tensor& t) {
  Shape shape;
  Dims reversed;
  for (int d = t.dim() - 1; d >= 0; --d) {
    shape.push_back(2 * t.size(d));
    reversed.push_back(d);
  }
  Tensor view =
      raw::permute(full(shape, is_floating(t.dtype()) ? std::nan("") : 0, t.dtype()), reversed);
  for (int d = 0; d < t.dim(); ++d) view = raw::slice(view, d, 0, 2 * t.size(d), 2);
  raw::copy_(view, t);
  return view;
}

/// Fails the test unless f's backward agrees with central differences.
inline void check_gradients(const std::function<Tensor(const Tensors&)>& f, const Tensors& inputs,
                            const GradcheckOptions& options = {}) {
  CHECK_EQ(gradcheck(f, inputs, options), std::string());
}

/// max |got - expected|; infinite where shapes differ or a NaN meets a number.
inline double max_abs_difference(const Tensor& got, const Tensor& expected) {
  if (!got.defined() || !expected.defined() || got.shape() != expected.shape()) return INFINITY;
  const auto a = got.to_vector<double>(), b = expected.to_vector<double>();
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
    const double difference = std::abs(a[i] - b[i]);
    largest = std::max(largest, std::isnan(difference) ? INFINITY : difference);
  }
  return largest;
}

/// |got - expected| / |expected|, Euclidean norms; infinite where shapes differ or anything is NaN.
inline double relative_difference(const Tensor& got, const Tensor& expected) {
  if (!got.defined() || !expected.defined() || got.shape() != expected.shape()) return INFINITY;
  const auto a = got.to_vector<double>(), b = expected.to_vector<double>();
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  if (std::isnan(difference) || std::isnan(norm)) return INFINITY;
  if (difference == 0) return 0;
  return std::sqrt(difference / norm);
}

/// Same shape, dtype and bits.
inline bool same_bits(const Tensor& a, const Tensor& b) {
  if (a.shape() != b.shape() || a.dtype() != b.dtype()) return false;
  const Tensor x = raw::contiguous(a), y = raw::contiguous(b);
  const auto* p = static_cast<const unsigned char*>(x.data_ptr());
  return std::equal(p, p + x.nbytes(), static_cast<const unsigned char*>(y.data_ptr()));
}

}  // namespace quern::test
