// Tensor: a shape and strides over a shared storage. Copying a Tensor shares; raw::clone copies.
#pragma once
#include <functional>
#include <iosfwd>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "quern/tensor/dtype.h"
#include "quern/tensor/memory_format.h"
#include "quern/tensor/shape.h"
#include "quern/tensor/storage.h"

/// Tensors, what is known of their gradients, and ops, which are free functions. Layers and
/// networks are in quern::nn, optimizers in quern::optim.
namespace quern {

struct RowSparse;

/// What autograd keeps with a tensor; opaque here, defined in autograd/.
struct AutogradMeta {
  virtual ~AutogradMeta() = default;
  /// What a printed tensor says of it: "requires_grad=True", "grad_fn=<relu>", or nothing.
  virtual std::string describe() const = 0;
};

/// A handle, const as a std::shared_ptr is: a const Tensor always refers to the same elements,
/// shape and dtype, but the elements, the version and what autograd keeps may change, through it or
/// through another handle.
class Tensor {
 public:
  /// Undefined: no shape, no storage. Error of all that asks for them.
  Tensor() = default;
  /// A view of `storage`: element i of `shape` lies at offset + Σ i·strides, in elements of dtype.
  /// Error: some element would lie outside.
  Tensor(std::shared_ptr<Storage> storage, Shape shape, Strides strides, int64_t offset,
         DType dtype);

  /// Has it a shape and elements? A default-constructed one has none.
  bool defined() const { return impl_ != nullptr; }
  const Shape& shape() const { return impl().shape; }         ///< sizes, outermost first
  const Strides& strides() const { return dense().strides; }  ///< in elements
  int dim() const { return impl().shape.size(); }             ///< how many dimensions
  /// Size along `d`, which may be negative: size(-1) is the last.
  int64_t size(int64_t d) const;
  int64_t stride(int64_t d) const;                ///< along `d`, likewise
  int64_t numel() const { return impl().numel; }  ///< how many elements
  /// Of the first element in the storage, in elements.
  int64_t offset() const { return dense().offset; }
  DType dtype() const { return impl().dtype; }  ///< the type of the elements
  int64_t nbytes() const { return numel() * itemsize(dtype()); }

  /// First element, to read; or the one that lies so many `behind` it.
  const void* data_ptr(int64_t behind = 0) const { return out_ptr(behind); }
  /// data_ptr() as T. Error: another dtype.
  template <class T>
  const T* data() const {
    return out<T>();
  }
  /// First element, to write. The version moves on, and as nobody can tell when the pointer is
  /// used, ops keep no packed or bf16 copies of this storage any more: they make them in every
  /// call. Where that matters, write into another tensor and raw::copy_() it into this one.
  void* mutable_data_ptr() const {
    dense().storage->expose();
    dense().storage->bump_version();
    return out_ptr();
  }
  /// mutable_data_ptr() as T. Error: another dtype.
  template <class T>
  T* mutable_data() const {
    check_dtype(dtype_of<T>);
    return static_cast<T*>(mutable_data_ptr());
  }
  /// First element, for an op that fills a tensor it has just made, or that moves the version on
  /// itself when it has written (InPlaceChange); or the one that lies so many `behind` it.
  void* out_ptr(int64_t behind = 0) const {
    return dense().storage->data() + (offset() + behind) * itemsize(dtype());
  }
  /// out_ptr() as T. Error: another dtype.
  template <class T>
  T* out() const {
    check_dtype(dtype_of<T>);
    return static_cast<T*>(out_ptr());
  }
  /// The only element as a number, whatever the dtype: what comes after the point is left out of an
  /// integer. Errors: numel() is not 1; an integer type that does not hold the number, or NaN.
  template <class T = double>
  T item() const {
    using Limits = std::numeric_limits<T>;
    if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>)
      return static_cast<T>(item_as_integer(
          Limits::min(),
          std::is_same_v<T, uint64_t> ? INT64_MAX : static_cast<int64_t>(Limits::max())));
    else return static_cast<T>(item_as_double());
  }

  /// The elements in logical order, whatever the strides, converted to T.
  template <class T>
  std::vector<T> to_vector() const {
    const Tensor dense = dense_as(dtype_of<T>);
    return std::vector<T>(dense.data<T>(), dense.data<T>() + numel());
  }

  /// Are the elements dense in this order? Dimensions of size 1 don't count: [N,C,1,1] is dense as
  /// both formats.
  bool is_dense_as(MemoryFormat format) const;
  /// The format ops preserve: channels_last if dense as that and not as contiguous, else
  /// contiguous.
  MemoryFormat format() const;

  /// Where the elements are, which views share.
  const std::shared_ptr<Storage>& storage() const { return dense().storage; }
  uint64_t version() const { return dense().storage->version(); }  ///< see Storage
  bool exposed() const { return dense().storage->exposed(); }      ///< see Storage
  /// Are both handles of one tensor? Views of one storage are not.
  bool is_same(const Tensor& other) const { return impl_ == other.impl_; }
  /// "f32 [16,64,56,56] channels_last", or "undefined": what messages say of a tensor.
  std::string describe() const;

  /// Row-sparse: of a shape whose rows are zero but for some that are kept, what embedding(...,
  /// {.sparse = true}) leaves in grad(). Has a shape and a dtype, and no storage: whatever asks for
  /// strides or elements, each op among them, is an error that names it.
  bool is_sparse() const { return impl().sparse != nullptr; }
  /// Of a row-sparse one: which rows it keeps, i64 [n], rising, each once. A handle of what it
  /// holds itself. Error: a dense one.
  const Tensor& rows() const;
  const Tensor& values() const;  ///< these rows, [n, ...], likewise
  /// All rows in memory; a dense tensor itself.
  Tensor to_dense() const;

  // Declared here so that loss.backward() reads as people know it; defined in autograd/.
  /// Does backward() compute a gradient for it, or for what it was made of?
  bool requires_grad() const;
  /// Marks a leaf for differentiation; returns itself. Error: not floating, or not a leaf.
  Tensor& requires_grad_(bool value = true);
  bool is_leaf() const;  ///< made by no recorded op
  /// The gradient accumulated by backward(), of its dtype, but f32 where that is f16, which has no
  /// room for small numbers; undefined before.
  Tensor grad() const;
  /// Puts `grad` in the place of what was accumulated; an undefined one drops it. Error: another
  /// shape, or not the dtype that grad() has.
  void set_grad(Tensor grad);
  /// The same elements without history.
  Tensor detach() const;
  /// Differentiates from this scalar (or from `gradient`, of this shape) to every leaf, adding to
  /// its grad().
  void backward(const Tensor& gradient = {}, bool retain_graph = false) const;
  /// Calls `hook` with this tensor's gradient when it is known; a defined result replaces it.
  void register_hook(std::function<Tensor(const Tensor&)> hook) const;

  /// What autograd keeps with it; null: nothing. This and the next two are for autograd.
  AutogradMeta* autograd() const { return impl_ ? impl_->autograd.get() : nullptr; }
  /// Keeps `meta` with it.
  void set_autograd(std::shared_ptr<AutogradMeta> meta) const { impl_->autograd = std::move(meta); }
  /// One for all handles of this tensor, by which a table may know whether it is still there.
  std::weak_ptr<const void> identity() const { return impl_; }

 private:
  struct Impl {
    std::shared_ptr<Storage> storage;
    Shape shape;
    Strides strides;
    int64_t offset;
    int64_t numel;
    DType dtype;
    std::shared_ptr<AutogradMeta> autograd;
    std::shared_ptr<const RowSparse> sparse;  // without storage, then
  };
  const Impl& impl() const {
    if (!impl_) [[unlikely]]
      throw_undefined();
    return *impl_;
  }
  const Impl& dense() const {
    if (!impl_ || !impl_->storage) [[unlikely]]
      throw_not_dense();
    return *impl_;
  }
  const RowSparse& sparse() const;
  [[noreturn]] static void throw_undefined();
  [[noreturn]] void throw_not_dense() const;
  void check_dtype(DType expected) const {
    check(expected == dtype(), "data", "dtype: expected {}, got {}", expected, dtype());
  }
  Tensor dense_as(DType dtype) const;
  double item_as_double() const;
  int64_t item_as_integer(int64_t least, int64_t most) const;
  friend Tensor sparse_rows(const Tensor& rows, const Tensor& values, int64_t size);
  std::shared_ptr<Impl> impl_;
};

/// What a row-sparse tensor keeps: Tensor::rows() and Tensor::values().
struct RowSparse {
  Tensor rows, values;  ///< i64 [n] and [n, ...]
};

using Tensors = std::vector<Tensor>;  ///< as parameters, or inputs of an op

/// The elements as PyTorch prints them: four digits, one width, scientific where magnitudes differ
/// much, the first and last three along a dimension of more than 1000 elements in all, lines of 80:
///   tensor([[1.0000, 2.0000],
///           [3.5000, 4.0000]], requires_grad=True)
/// An op's output ends in the op's name, `grad_fn=<relu>`. "undefined" if it is.
std::string to_string(const Tensor& t);
std::ostream& operator<<(std::ostream& out, const Tensor& t);  ///< as to_string()

/// A tensor in a message: "f32 [16,64,56,56]", never its elements.
struct TensorInMessage {
  TensorInMessage(const Tensor& tensor) : tensor(tensor) {}  ///< of check(), without being asked
  const Tensor& tensor;                                      ///< the one that is named
};
inline std::string to_string(TensorInMessage t) { return t.tensor.describe(); }
/// Messages name a tensor by its dtype and shape.
template <>
struct InMessage<Tensor> {
  using Type = TensorInMessage;  ///< what is shown
};

/// @name Factories
/// Tensors of a shape. Errors: a negative size, or a size in bytes that does not fit.
/// @{

/// Elements are whatever the memory held.
Tensor empty(const Shape& shape, DType dtype = DType::f32,
             MemoryFormat format = MemoryFormat::contiguous);
Tensor empty_like(const Tensor& t);               ///< same shape, dtype and format
Tensor empty_like(const Tensor& t, DType dtype);  ///< same shape and format
/// All elements `value`, converted to the dtype.
Tensor full(const Shape& shape, double value, DType dtype = DType::f32,
            MemoryFormat format = MemoryFormat::contiguous);
/// All 0.
Tensor zeros(const Shape& shape, DType dtype = DType::f32,
             MemoryFormat format = MemoryFormat::contiguous);
/// All 1.
Tensor ones(const Shape& shape, DType dtype = DType::f32,
            MemoryFormat format = MemoryFormat::contiguous);
Tensor zeros_like(const Tensor& t);  ///< all 0, in the shape, dtype and format of t
Tensor ones_like(const Tensor& t);   ///< all 1, likewise
Tensor arange(int64_t end, DType dtype = DType::i64);  ///< 0, 1, ..., end-1
/// @}

/// A row-sparse tensor of `size` rows, of which `rows` (i64 [n], rising, each once) are `values` (a
/// floating [n, ...]) and the others zero; holds both as they are. Error: anything else.
Tensor sparse_rows(const Tensor& rows, const Tensor& values, int64_t size);

/// A contiguous tensor with a copy of `values`. Error: as many as `shape` says.
template <class T>
Tensor from_span(std::span<const T> values, const Shape& shape) {
  check(numel(shape) == static_cast<int64_t>(values.size()), "from_span",
        "values: expected {} for shape {}, got {}", numel(shape), shape, values.size());
  Tensor t = empty(shape, dtype_of<T>);
  std::copy(values.begin(), values.end(), t.out<T>());
  return t;
}
/// A contiguous tensor with a copy of `values`; of one dimension where there is no shape. Error: as
/// many as `shape` says.
template <class T>
Tensor from_vector(const std::vector<T>& values, const Shape& shape) {
  return from_span(std::span<const T>(values), shape);
}
template <class T>
Tensor from_vector(const std::vector<T>& values) {
  return from_vector(values, Shape{static_cast<int64_t>(values.size())});
}

}  // namespace quern

template <>
struct fmt::formatter<quern::Tensor> : quern::TextFormatter<quern::Tensor> {};
/// So that a check may name a tensor and pay for the text only when it fails.
template <>
struct fmt::formatter<quern::TensorInMessage> : quern::TextFormatter<quern::TensorInMessage> {};
