// The layer_norm kernels as their formulas read: the oracle, and the last choice.
#include <cmath>

#include "quern/ops/kernels/norm/layer_norm_kernel.h"
#include "quern/tensor/bfloat16.h"

namespace quern::kernels {
namespace {

/// T: the elements' type. P: that of parameters and statistics. Sums over a row are f64.
template <class T, class P>
struct Reference {
  static void forward(const LayerNormRows& size, const void* x_, const void* weight_,
                      const void* bias_, double eps, void* y_, double* mean_, void* invstd_) {
    const P *weight = static_cast<const P*>(weight_), *bias = static_cast<const P*>(bias_);
    const double n = static_cast<double>(size.columns);
    for (int64_t r = 0; r < size.rows; ++r) {
      const T* x = static_cast<const T*>(x_) + r * size.columns;
      T* y = static_cast<T*>(y_) + r * size.columns;
      double mean = 0, squares = 0;
      for (int64_t i = 0; i < size.columns; ++i) mean += x[i] / n;
      for (int64_t i = 0; i < size.columns; ++i) squares += (x[i] - mean) * (x[i] - mean);
      const double invstd = 1 / std::sqrt(squares / n + eps);
      for (int64_t i = 0; i < size.columns; ++i)
        y[i] = static_cast<T>((x[i] - mean) * invstd * weight[i] + bias[i]);
      mean_[r] = mean;
      static_cast<P*>(invstd_)[r] = static_cast<P>(invstd);
    }
  }

  static void backward(const LayerNormRows& size, const void* x_, const void* dy_,
                       const void* weight_, const double* mean_, const void* invstd_, void* dx_,
                       void* dweight_, void* dbias_) {
    const P* weight = static_cast<const P*>(weight_);
    P *dweight = static_cast<P*>(dweight_), *dbias = static_cast<P*>(dbias_);
    const double n = static_cast<double>(size.columns);
    for (int64_t r = 0; r < size.rows; ++r) {
      const T* x = static_cast<const T*>(x_) + r * size.columns;
      const T* dy = static_cast<const T*>(dy_) + r * size.columns;
      T* dx = static_cast<T*>(dx_) + r * size.columns;
      const double mean = mean_[r], invstd = static_cast<const P*>(invstd_)[r];
      double g_mean = 0, gh_mean = 0;
      for (int64_t i = 0; i < size.columns; ++i) {
        const double g = static_cast<double>(dy[i]) * weight[i], h = (x[i] - mean) * invstd;
        g_mean += g / n, gh_mean += g * h / n;
      }
      for (int64_t i = 0; i < size.columns; ++i) {
        const double g = static_cast<double>(dy[i]) * weight[i], h = (x[i] - mean) * invstd;
        dx[i] = static_cast<T>(invstd * (g - g_mean - h * gh_mean));
        dweight[i] += static_cast<P>(dy[i] * h);
        dbias[i] += static_cast<P>(dy[i]);
      }
    }
  }

  static constexpr LayerNormKernel record(const char* name, DType dtype) {
    return {name, kIsa, dtype, forward, backward};
  }
};

constexpr LayerNormKernel kRecords[] = {
    Reference<float, float>::record(QUERN_NAMED("layer_norm_f32"), DType::f32),
    Reference<bfloat16, float>::record(QUERN_NAMED("layer_norm_bf16"), DType::bf16),
    Reference<double, double>::record(QUERN_NAMED("layer_norm_f64"), DType::f64),
};

}  // namespace

QUERN_KERNELS(LayerNormKernel, layer_norm, kRecords)

}  // namespace quern::kernels
