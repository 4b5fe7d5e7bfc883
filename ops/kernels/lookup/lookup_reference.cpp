// Lookups as their formulas read: the oracle.
#include <cstring>

#include "quern/ops/kernels/accumulator.h"
#include "quern/ops/kernels/lookup/lookup_kernel.h"
#include "quern/tensor/bfloat16.h"
#include "quern/tensor/float16.h"

namespace quern::kernels {
namespace {

void copy_rows(const RowCopy& c) {
  for (int64_t i = 0; i < c.n; ++i) {
    const int64_t from = c.from_index ? c.from_index[i] : i, to = c.to_index ? c.to_index[i] : i;
    std::memcpy(static_cast<char*>(c.to) + to * c.to_stride,
                static_cast<const char*>(c.from) + from * c.from_stride,
                static_cast<size_t>(c.bytes));
  }
}

template <class From, class To>
void segment_sum(const SegmentSum& p) {
  using Sum = Accumulator<To>;
  const From* from = static_cast<const From*>(p.from);
  const Sum* weight = static_cast<const Sum*>(p.weight);
  for (int64_t s = 0; s < p.segments; ++s) {
    To* to = static_cast<To*>(p.to) + (p.to_index ? p.to_index[s] : s) * p.to_stride;
    for (int64_t c = 0; c < p.width; ++c) {
      Sum sum = p.add ? static_cast<Sum>(to[c]) : 0;
      for (int64_t j = p.offsets[s]; j < p.offsets[s + 1]; ++j) {
        const Sum x = from[(p.index ? p.index[j] : j) * p.from_stride + c];
        sum += weight ? weight[j] * x : x;
      }
      to[c] = static_cast<To>(sum);
    }
  }
}

constexpr RowCopyKernel kRowCopy[] = {{QUERN_NAMED("copy_rows"), kIsa, copy_rows}};
constexpr SegmentSumKernel kSegmentSum[] = {
#define QUERN_SUM(from, From, to, To) \
  {QUERN_NAMED("segment_sum_" #from "_" #to), kIsa, DType::from, DType::to, segment_sum<From, To>},
#include "quern/ops/kernels/lookup/sums.inc"
};

}  // namespace

QUERN_KERNELS(RowCopyKernel, row_copy, kRowCopy)
QUERN_KERNELS(SegmentSumKernel, segment_sum, kSegmentSum)

}  // namespace quern::kernels
