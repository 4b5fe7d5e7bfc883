// Tensor functions that record no gradient: what ops, modules, optimizers and file formats are
// built of. Their differentiable namesakes live in ops/.
#pragma once
#include "quern/tensor/tensor.h"

/// Functions of tensors that record no gradient.
namespace quern::raw {

/// @name Views
/// They share storage, and copy nothing.
/// @{

/// Element i of `shape` lies at offset + Σ i·strides of t's storage. Error: outside of it.
Tensor as_strided(const Tensor& t, const Shape& shape, const Strides& strides, int64_t offset);
Tensor permute(const Tensor& t, const Dims& order);             ///< dimension i is order[i] of t
Tensor transpose(const Tensor& t, int64_t dim0, int64_t dim1);  ///< the two change places
/// Elements start, start+step, ... below end along `dim`; negative bounds count from its end.
Tensor slice(const Tensor& t, int64_t dim, int64_t start, int64_t end, int64_t step = 1);
Tensor select(const Tensor& t, int64_t dim, int64_t index);  ///< a slice of one, without `dim`
Tensor expand(const Tensor& t, const Shape& shape);          ///< broadcasts with stride 0
Tensor squeeze(const Tensor& t, int64_t dim);                ///< all of t if its size is not 1
Tensor unsqueeze(const Tensor& t, int64_t dim);              ///< a dimension of size 1 at `dim`
/// The same storage seen through another handle, without autograd history.
Tensor alias(const Tensor& t);
/// A view where the strides allow it, else a contiguous copy. One size may be -1: deduced.
Tensor reshape(const Tensor& t, const Shape& shape);
/// @}

/// @name Before writing in place
/// @{

/// Error of `op` unless each element of `dst` has memory of its own: no expanded dimension, and no
/// windows that overlap.
void check_writable(std::string_view op, const Tensor& dst, std::string_view name = "dst");
/// May elements of a and b share memory? Told by where the first and the last ones lie.
bool may_overlap(const Tensor& a, const Tensor& b);
/// Do they? Asks for each element where others may lie between.
bool overlap(const Tensor& a, const Tensor& b);
/// @}

/// @name Copies
/// @{

/// dst = src, broadcast and converted to dst's dtype, whatever the strides; dst's version moves on.
/// Takes no memory unless they share theirs.
void copy_(const Tensor& dst, const Tensor& src);
void fill_(const Tensor& dst, double value);  ///< all elements `value`, converted
Tensor clone(const Tensor& t);                ///< dense copy of the same dtype and format
/// `t` itself if it is dense as `format`, else a copy that is.
Tensor contiguous(const Tensor& t, MemoryFormat format = MemoryFormat::contiguous);
/// `t` itself if it has this dtype, else a converted copy of the same format.
Tensor to(const Tensor& t, DType dtype);
/// @}

}  // namespace quern::raw
