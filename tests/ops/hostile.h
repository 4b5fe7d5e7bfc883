// Operands as programs make them: views of any layout, with NaN wherever an op has no business.
#pragma once
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "emulated_cpu.h"
#include "gradcheck_helper.h"

namespace quern::test {

/// Makes a view of t's shape and dtype, of its values or, where the layout lets elements share
/// memory, of some of them; undefined where t has too few dimensions for it. Nothing else has a
/// part in its storage.
struct Layout {
  std::string name;
  std::function<Tensor(const Tensor&)> make;
};

/// Which of many combinations are tried: all, but on an emulated CPU one in twenty.
class Sample {
 public:
  bool takes_next() { return !kEmulatedCpu || count_++ % 20 == 0; }

 private:
  int count_ = 0;
};

/// A storage of `elements` that are all NaN, or 0 if they cannot be.
inline Tensor poisoned(int64_t elements, DType dtype) {
  return full({elements}, is_floating(dtype) ? NAN : 0, dtype);
}

/// t's values in a poisoned storage, element 0 at `offset`.
inline Tensor placed(const Tensor& t, const Strides& strides, int64_t offset) {
  int64_t last = offset;
  for (int d = 0; d < t.dim() && t.numel() > 0; ++d) last += (t.shape()[d] - 1) * strides[d];
  const Tensor view = raw::as_strided(poisoned(last + 4, t.dtype()), t.shape(), strides, offset);
  raw::copy_(view, t);
  return view;
}

/// Dense, its first dimension innermost.
inline Strides reversed_strides(const Shape& shape) {
  Strides strides = shape;
  int64_t step = 1;
  for (int d = 0; d < shape.size(); ++d) strides[d] = step, step *= std::max<int64_t>(1, shape[d]);
  return strides;
}

/// The same element all along dimension d, in one place.
inline Tensor repeated(const Tensor& t, int d) {
  if (d >= t.dim() || t.size(d) == 0) return {};
  return raw::expand(raw::clone(raw::slice(t, d, 0, 1)), t.shape());
}

/// Windows that overlap: a step along any dimension is one of one element (two along the first).
inline Tensor windows(const Tensor& t) {
  if (t.dim() < 2 || t.numel() == 0) return {};
  Strides strides = Strides::filled(t.dim(), 1);
  strides[0] = 2;
  int64_t last = 0;
  for (int d = 0; d < t.dim(); ++d) last += (t.size(d) - 1) * strides[d];
  const Tensor flat = raw::reshape(raw::contiguous(t), {t.numel()}),
               values = poisoned(last + 1, t.dtype());
  for (int64_t i = 0; i <= last; i += t.numel())
    raw::copy_(raw::slice(values, 0, i, i + t.numel()), raw::slice(flat, 0, 0, last + 1 - i));
  return raw::as_strided(values, t.shape(), strides, 0);
}

/// Strides that say nothing where the size is 1.
inline Tensor odd_strides(const Tensor& t) {
  Strides strides = contiguous_strides(t.shape());
  for (int d = 0; d < t.dim(); ++d)
    if (t.size(d) == 1) strides[d] = d % 2 == 0 ? 0 : 7;
  return placed(t, strides, 1);
}

/// The middle of a larger image in channels_last: pixels and rows have gaps.
inline Tensor channels_last_part(const Tensor& t) {
  if (t.dim() != 4) return {};
  const Shape& s = t.shape();
  Tensor view =
      raw::contiguous(raw::reshape(poisoned((s[0] + 1) * (s[1] + 2) * s[2] * (s[3] + 1), t.dtype()),
                                   {s[0] + 1, s[1] + 2, s[2], s[3] + 1}),
                      MemoryFormat::channels_last);
  view = raw::slice(view, 0, 1, s[0] + 1);
  view = raw::slice(view, 1, 1, s[1] + 1);
  view = raw::slice(view, 3, 0, s[3]);
  raw::copy_(view, t);
  return view;
}

inline const std::vector<Layout>& layouts() {
  static const std::vector<Layout> all = [] {
    std::vector<Layout> list{
        {"dense", [](const Tensor& t) { return raw::clone(raw::contiguous(t)); }},
        {"offset", [](const Tensor& t) { return placed(t, contiguous_strides(t.shape()), 3); }},
        {"stepped", [](const Tensor& t) { return strided(t); }},
        {"reversed", [](const Tensor& t) { return placed(t, reversed_strides(t.shape()), 2); }},
        {"odd strides", odd_strides},
        {"windows", windows},
        {"channels_last",
         [](const Tensor& t) {
           return t.dim() == 4 ? raw::clone(raw::contiguous(t, MemoryFormat::channels_last))
                               : Tensor();
         }},
        {"channels_last part", channels_last_part},
        {"one element",
         [](const Tensor& t) {
           if (t.numel() == 0) return Tensor();
           const Tensor first = raw::as_strided(t, Shape(), Strides(), t.offset());
           return raw::expand(raw::clone(first), t.shape());
         }},
    };
    for (int d = 0; d < 4; ++d)
      list.push_back(
          {fmt::format("repeated along {}", d), [d](const Tensor& t) { return repeated(t, d); }});
    return list;
  }();
  return all;
}

/// All bytes of a tensor's storage, what lies around its elements included.
inline std::string memory_of(const Tensor& t) {
  return {reinterpret_cast<const char*>(t.storage()->data()),
          static_cast<size_t>(t.storage()->bytes())};
}

}  // namespace quern::test
