// The definition: the oracle of the vector kernels and the last candidate of dispatch.
#include "quern/ops/kernels/gemm/direct_kernel.h"
#include "quern/tensor/bfloat16.h"

namespace quern::kernels {
namespace {

template <class T>
void product(const Direct& d) {
  for (int64_t i = 0; i < d.m; ++i)
    for (int64_t j = 0; j < d.n; ++j) {
      float sum = 0;
      for (int64_t p = 0; p < d.k; ++p)
        sum += static_cast<float>(static_cast<const T*>(d.a)[i * d.a_row + p * d.a_col]) *
               static_cast<float>(static_cast<const T*>(d.b)[p * d.b_row + j * d.b_col]);
      const int64_t at = i * d.c_row + j * d.c_col;
      if (d.rounded != nullptr) static_cast<T*>(d.rounded)[at] = static_cast<T>(sum);
      else d.c[at] = sum;
    }
}

constexpr DirectKernel kRecords[] = {
    {QUERN_NAMED("direct_f32"), kIsa, DType::f32, product<float>, product<float>},
    {QUERN_NAMED("direct_bf16"), kIsa, DType::bf16, product<bfloat16>, product<bfloat16>, true},
};

}  // namespace

QUERN_KERNELS(DirectKernel, direct, kRecords)

}  // namespace quern::kernels
