#include "quern/ops/kernels/norm/layer_norm.h"

#include <algorithm>
#include <cstddef>

#include "quern/tensor/divide.h"
#include "quern/tensor/dtype.h"
#include "quern/tensor/parallel.h"
#include "quern/tensor/storage.h"

namespace quern::kernels {
namespace {

const std::byte* at(const void* p, int64_t bytes) {
  return static_cast<const std::byte*>(p) + bytes;
}
std::byte* at(void* p, int64_t bytes) { return static_cast<std::byte*>(p) + bytes; }

/// Takes in `count` sums of a kernel, and starts them anew.
template <class P>
void drain(P* sums, double* total, int64_t count) {
  for (int64_t i = 0; i < count; ++i) total[i] += static_cast<double>(sums[i]), sums[i] = 0;
}

}  // namespace

void layer_norm_forward(const LayerNormKernel& kernel, const LayerNormRows& size, const void* x,
                        const void* weight, const void* bias, double eps, void* y, double* mean,
                        void* invstd) {
  const int64_t row = size.columns * itemsize(kernel.dtype), p = kernel.dtype == DType::f64 ? 8 : 4;
  const int64_t grain = ceil_div(1 << 15, size.columns);  // elements that are worth a thread
  parallel_chunks(size.rows, grain, [&](int64_t begin, int64_t end) {
    kernel.forward({end - begin, size.columns}, at(x, begin * row), weight, bias, eps,
                   at(y, begin * row), mean + begin, at(invstd, begin * p));
  });
}

void layer_norm_backward(const LayerNormKernel& kernel, const LayerNormRows& size, const void* x,
                         const void* dy, const void* weight, const double* mean, const void* invstd,
                         void* dx, double* dweight, double* dbias) {
  constexpr int64_t kGroups = 64;  // of rows: partial results a column, at most
  constexpr int64_t kRows = 64;    // that the kernel may sum in f32
  const int64_t columns = size.columns, row = columns * itemsize(kernel.dtype);
  const int64_t p = kernel.dtype == DType::f64 ? 8 : 4;
  const int64_t per_group = std::max(ceil_div(size.rows, kGroups), ceil_div(1 << 15, columns));
  const int64_t groups = ceil_div(size.rows, per_group);
  // Of each group: dweight and dbias in f64, then what the kernel adds to.
  const Workspace totals(groups * 2 * columns * static_cast<int64_t>(sizeof(double)));
  const Workspace sums(groups * 2 * columns * p);

  parallel_for(groups, [&](int64_t group) {
    double* total = totals.as<double>() + group * 2 * columns;
    std::byte* sum = sums.as<std::byte>() + group * 2 * columns * p;
    std::fill_n(total, 2 * columns, 0.0);
    std::fill_n(sum, 2 * columns * p, std::byte{0});
    const int64_t end = std::min(size.rows, (group + 1) * per_group);
    for (int64_t r = group * per_group; r < end; r += kRows) {
      kernel.backward({std::min(kRows, end - r), columns}, at(x, r * row), at(dy, r * row), weight,
                      mean + r, at(invstd, r * p), at(dx, r * row), sum, sum + columns * p);
      if (kernel.dtype == DType::f64) drain(reinterpret_cast<double*>(sum), total, 2 * columns);
      else drain(reinterpret_cast<float*>(sum), total, 2 * columns);
    }
  });

  std::fill_n(dweight, columns, 0.0);
  std::fill_n(dbias, columns, 0.0);
  for (int64_t group = 0; group < groups; ++group) {
    double* total = totals.as<double>() + group * 2 * columns;
    drain(total, dweight, columns), drain(total + columns, dbias, columns);
  }
}

}  // namespace quern::kernels
