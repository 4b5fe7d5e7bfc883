#include "quern/ops/kernels/table.h"

#include <deque>
#include <vector>

#include "quern/ops/kernels/conv/copy_kernel.h"
#include "quern/ops/kernels/conv/tile_kernel.h"
#include "quern/ops/kernels/conv/winograd_kernel.h"
#include "quern/ops/kernels/elementwise/elementwise_kernel.h"
#include "quern/ops/kernels/gemm/gemm_kernel.h"
#include "quern/ops/kernels/norm/batch_norm_kernel.h"
#include "quern/ops/kernels/norm/join_kernel.h"
#include "quern/ops/kernels/norm/layer_norm_kernel.h"
#include "quern/ops/kernels/optim/update_kernel.h"
#include "quern/ops/kernels/pool/pool_kernel.h"
#include "quern/ops/kernels/reduce/row_kernel.h"

namespace quern::kernels {

#define QUERN_TABLE(Kernel, family, unit) extern const UnitRecords<Kernel> family##_##unit;
#include "tables.inc"
#undef QUERN_TABLE

namespace {

template <class Kernel>
const Kernel* fitted(const Kernel& record) {
  return &record;
}
/// To the length of this CPU's vectors.
const GemmKernel* fitted(const GemmKernel& record) {
  if (!record.scalable) return &record;
  static std::deque<GemmKernel> copies;
  GemmKernel& copy = copies.emplace_back(record);
  copy.nr = record.nr * sve_bits() / 128;
  return &copy;
}

template <class Kernel>
void append(std::vector<const Kernel*>& list, const UnitRecords<Kernel>& unit) {
  for (int i = 0; i < unit.count; ++i) list.push_back(fitted(unit.records[i]));
}
template <class Kernel, class Other>
void append(std::vector<const Kernel*>&, const UnitRecords<Other>&) {}

}  // namespace

template <class Kernel>
std::span<const Kernel* const> table() {
  static const auto all = [] {
    std::vector<const Kernel*> list;
#define QUERN_TABLE(Of, family, unit) append(list, family##_##unit);
#include "tables.inc"
#undef QUERN_TABLE
    return list;
  }();
  return all;
}

template std::span<const AdamWKernel* const> table();
template std::span<const BatchNormKernel* const> table();
template std::span<const BinaryKernel* const> table();
template std::span<const CopyKernel* const> table();
template std::span<const GemmKernel* const> table();
template std::span<const JoinKernel* const> table();
template std::span<const LayerNormKernel* const> table();
template std::span<const PoolKernel* const> table();
template std::span<const RowKernel* const> table();
template std::span<const SgdKernel* const> table();
template std::span<const TileKernel* const> table();
template std::span<const UnaryKernel* const> table();
template std::span<const WinogradKernel* const> table();

}  // namespace quern::kernels
