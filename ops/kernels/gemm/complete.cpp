#include "quern/ops/kernels/gemm/complete.h"

#include <type_traits>

#include "quern/ops/kernels/pack/matrix.h"
#include "quern/tensor/bfloat16.h"
#include "quern/tensor/storage.h"

namespace quern::kernels {
namespace {

/// One row of C from its sums: out[j] (+)= sum[j] + bias[j], rounded once.
template <class Out, class Acc>
void complete_row(Out* out, const Acc* sum, const Acc* bias, int64_t n, bool accumulate) {
  for (int64_t j = 0; j < n; ++j) {
    Acc value = sum[j];
    if (bias != nullptr) value += bias[j];
    if (accumulate) value += static_cast<Acc>(out[j]);
    out[j] = static_cast<Out>(value);
  }
}

}  // namespace

void complete(const GemmProblem& p, int64_t batch, int64_t i, int64_t j, int64_t m, int64_t n,
              DType of_sums, const void* sums, int64_t ld) {
  if (of_sums == DType::f32 && p.c_dtype == DType::bf16 && !p.accumulate) {
    const Workspace biased(p.bias == nullptr ? 0 : m * n * int64_t{sizeof(float)});
    const auto* from = static_cast<const float*>(sums);
    if (p.bias != nullptr) {
      float* const to = biased.as<float>();
      for (int64_t r = 0; r < m; ++r)
        complete_row(to + r * n, from + r * ld, static_cast<const float*>(p.bias) + j, n, false);
      from = to, ld = n;
    }
    return round_matrix(
        from, ld, 1,
        static_cast<bfloat16*>(p.c) + batch * p.c_batch_stride + i * p.c_row_stride + j,
        p.c_row_stride, m, n, 1, 0);
  }
  const auto rows = [&]<class Out, class Acc>(std::type_identity<Out>, std::type_identity<Acc>) {
    Out* out = static_cast<Out*>(p.c) + batch * p.c_batch_stride + i * p.c_row_stride + j;
    const Acc* bias = p.bias == nullptr ? nullptr : static_cast<const Acc*>(p.bias) + j;
    for (int64_t r = 0; r < m; ++r)
      complete_row(out + r * p.c_row_stride, static_cast<const Acc*>(sums) + r * ld, bias, n,
                   p.accumulate);
  };
  constexpr std::type_identity<float> f32;
  constexpr std::type_identity<double> f64;
  if (of_sums == DType::f64) rows(f64, f64);
  else if (p.c_dtype == DType::f32) rows(f32, f32);
  else rows(std::type_identity<bfloat16>{}, f32);
}

}  // namespace quern::kernels
