// Packed copies of weights, kept between calls: a bounded cache shared by all ops, least recently
// used out first. Inference keeps a copy at once and so packs each weight once. Where gradients are
// recorded, and in a backward pass, one is kept from the second time that it is asked for, so that
// training, where every step changes the weights, keeps none.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "quern/ops/kernels/gemm/gemm_kernel.h"
#include "quern/tensor/parallel.h"
#include "quern/tensor/tensor.h"

namespace quern {

/// At most so many tensors beside a weight go into its packed copy.
inline constexpr size_t kMaxPackedWith = 4;

/// The packed copy of `weight`, in which those of `with` that are defined have a part: the kept one, or
/// `bytes` bytes filled by pack(memory). It is told by the tensors' storages, versions, offsets, shapes,
/// strides and dtypes, by the kernel, by `layout` (a literal such as "brgemm") and by `parameters`,
/// whatever else the copy depends on. Nothing is kept of tensors that may change unseen, because someone
/// has a pointer to write to them (Storage::exposed). Any thread may call.
std::shared_ptr<const Storage> packed_copy(const Tensor& weight, std::string_view layout,
                                           const kernels::GemmKernel& kernel, int64_t bytes,
                                           FunctionRef<void(void*)> pack,
                                           const Dims& parameters = {},
                                           std::span<const Tensor> with = {});

struct PackCacheStats {
  int64_t entries, bytes;  ///< copies kept now
  int64_t hits, misses;    ///< since the start or the last clear
};
PackCacheStats pack_cache_stats();
void clear_pack_cache();
/// Bounds of what is kept; QUERN_PACK_CACHE_CAPACITY and QUERN_PACK_CACHE_MIB in the environment set them
/// at first. A network that asks for more in turn, time after time, finds none of them. 0: keep nothing.
/// Error: a negative bound.
void set_pack_cache_limits(int64_t entries, int64_t bytes);
inline constexpr int64_t kPackCacheCapacity = 4096, kPackCacheBytes = int64_t{4} << 30;

}  // namespace quern
