// Packed copies of weights, kept between calls (pack_cache.h).
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "quern/ops/kernels/gemm/gemm_kernel.h"
#include "quern/tensor/parallel.h"
#include "quern/tensor/tensor.h"

namespace quern::detail {

/// At most so many tensors beside a weight go into its packed copy.
inline constexpr size_t kMaxPackedWith = 4;

/// What a packed copy depends on beside tensors, kernel and layout: numbers that tell one from
/// another, the rest 0.
using PackingParameters = std::array<int64_t, 12>;

/// The packed copy of `weight`, in which those of `with` that are defined have a part: the kept
/// one, or `bytes` bytes filled by pack(memory). It is told by the tensors' storages, versions,
/// offsets, shapes, strides and dtypes, by the kernel, by `layout` (a literal such as "brgemm") and
/// by `parameters`, whatever else the copy depends on. Nothing is kept of tensors that may change
/// unseen, because someone has a pointer to write to them (Storage::exposed). Any thread may call.
std::shared_ptr<const Storage> packed_copy(const Tensor& weight, std::string_view layout,
                                           const kernels::GemmKernel& kernel, int64_t bytes,
                                           FunctionRef<void(void*)> pack,
                                           const PackingParameters& parameters = {},
                                           std::span<const Tensor> with = {});

}  // namespace quern::detail
