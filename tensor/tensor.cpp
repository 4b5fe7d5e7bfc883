#include "quern/tensor/tensor.h"

#include <numeric>

#include "quern/tensor/raw.h"

namespace quern {

Tensor::Tensor(std::shared_ptr<Storage> storage, Shape shape, Strides strides, int64_t offset,
               DType dtype) {
  check(storage != nullptr, "tensor", "storage: expected one, got none");
  check(shape.size() == strides.size(), "tensor", "strides: expected {} for shape {}, got {}",
        shape.size(), shape, strides);
  const int64_t count = quern::numel(shape);
  const int64_t available = storage->bytes() / itemsize(dtype);
  check(offset >= 0 && offset <= available, "tensor", "offset: expected 0..{}, got {}", available,
        offset);
  int64_t room = available - offset - (count > 0);  // elements between the last so far and the end
  for (int d = 0; d < shape.size() && room >= 0 && count > 0; ++d) {
    check(strides[d] >= 0, "tensor", "strides: expected none negative, got {}", strides);
    const int64_t steps = shape[d] - 1;
    room = steps > 0 && strides[d] > room / steps ? -1 : room - steps * strides[d];
  }
  check(room >= 0, "tensor",
        "strides: expected a view within {} elements, got shape {}, strides {}, offset {}",
        available, shape, strides, offset);
  impl_ = std::allocate_shared<Impl>(
      CachedAllocator<Impl>(),
      Impl{std::move(storage), shape, strides, offset, count, dtype, nullptr, nullptr});
}

void Tensor::throw_undefined() {
  fail("tensor", "tensor: expected a defined tensor, got undefined");
}

int64_t Tensor::size(int64_t d) const { return shape()[normalize_dim("size", d, dim())]; }
int64_t Tensor::stride(int64_t d) const { return strides()[normalize_dim("stride", d, dim())]; }

bool Tensor::is_dense_as(MemoryFormat format) const {
  if (format == MemoryFormat::channels_last && dim() != 4) return false;
  if (numel() == 0) return true;
  const Strides& steps = strides();
  int64_t expected = 1;
  for (int i = dim() - 1; i >= 0; --i) {
    const int d = dimension_at(i, format);
    if (shape()[d] == 1) continue;
    if (steps[d] != expected) return false;
    expected *= shape()[d];
  }
  return true;
}

MemoryFormat Tensor::format() const {
  return !is_dense_as(MemoryFormat::contiguous) && is_dense_as(MemoryFormat::channels_last)
             ? MemoryFormat::channels_last
             : MemoryFormat::contiguous;
}

std::string Tensor::describe() const {
  if (!defined()) return "undefined";
  std::string text = fmt::format("{} {}", dtype(), shape());
  if (is_sparse()) return fmt::format("{} row-sparse, {} rows", text, rows().numel());
  if (is_dense_as(MemoryFormat::contiguous)) return text;
  if (is_dense_as(MemoryFormat::channels_last)) return text + " channels_last";
  return fmt::format("{} strides {}", text, strides());
}

namespace {

void check_item(const Tensor& t) {
  check(t.defined(), "item", "tensor: expected a defined tensor, got undefined");
  check(t.numel() == 1, "item", "tensor: expected one element, got {}", t);
}

}  // namespace

int64_t Tensor::item_as_integer(int64_t least, int64_t most) const {
  check_item(*this);
  return visit_dtype(dtype(), [&]<class T>(std::type_identity<T>) {
    const T value = *static_cast<const T*>(data_ptr());
    int64_t number = 0;
    bool fits = true;
    if constexpr (std::is_integral_v<T>) {
      number = static_cast<int64_t>(value);
    } else {
      const auto wide = static_cast<double>(value);
      fits = wide >= -0x1p63 && wide < 0x1p63;  // false for NaN
      if (fits) number = static_cast<int64_t>(value);
    }
    check(fits && least <= number && number <= most, "item",
          "tensor: expected a number within {}..{}, got {}", least, most,
          fits ? fmt::format("{}", number) : fmt::format("{}", static_cast<double>(value)));
    return number;
  });
}

double Tensor::item_as_double() const {
  check_item(*this);
  return visit_dtype(dtype(), [&]<class T>(std::type_identity<T>) {
    return static_cast<double>(*static_cast<const T*>(data_ptr()));
  });
}

Tensor Tensor::dense_as(DType dtype) const {
  check(defined(), "to_vector", "tensor: expected a defined tensor, got undefined");
  return raw::contiguous(raw::to(*this, dtype));
}

Tensor empty(const Shape& shape, DType dtype, MemoryFormat format) {
  const int64_t bytes = numel(shape) * itemsize(dtype);
  return Tensor(make_storage(bytes), shape, dense_strides(shape, format), 0, dtype);
}

Tensor empty_like(const Tensor& t) { return empty_like(t, t.dtype()); }
Tensor empty_like(const Tensor& t, DType dtype) { return empty(t.shape(), dtype, t.format()); }

Tensor full(const Shape& shape, double value, DType dtype, MemoryFormat format) {
  Tensor t = empty(shape, dtype, format);
  raw::fill_(t, value);
  return t;
}

Tensor zeros(const Shape& shape, DType dtype, MemoryFormat format) {
  return full(shape, 0, dtype, format);
}

Tensor ones(const Shape& shape, DType dtype, MemoryFormat format) {
  return full(shape, 1, dtype, format);
}

Tensor zeros_like(const Tensor& t) { return zeros(t.shape(), t.dtype(), t.format()); }
Tensor ones_like(const Tensor& t) { return ones(t.shape(), t.dtype(), t.format()); }

Tensor arange(int64_t end, DType dtype) {
  check(end >= 0, "arange", "end: expected at least 0, got {}", end);
  Tensor t = empty({end}, DType::i64);
  std::iota(t.out<int64_t>(), t.out<int64_t>() + end, int64_t{0});
  return raw::to(t, dtype);
}

}  // namespace quern
