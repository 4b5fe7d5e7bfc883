// The batch_norm kernels as their formulas read: the oracle, and the last choice.
#include "quern/ops/kernels/norm/batch_norm_kernel.h"
#include "quern/tensor/bfloat16.h"

namespace quern::kernels {
namespace {

/// T: the elements' type. P: the parameters', in which it computes.
template <class T, class P, bool nhwc>
struct Reference {
  static int64_t at(const BatchNormBlock& block, int64_t r, int64_t c) {
    return nhwc ? r * block.stride + c : c * block.stride + r;
  }

  static void stats(const BatchNormBlock& block, const void* x_, double* mean, double* m2) {
    const T* x = static_cast<const T*>(x_);
    for (int64_t c = 0; c < block.channels; ++c) {
      double sum = 0, squares = 0;
      for (int64_t r = 0; r < block.rows; ++r) sum += x[at(block, r, c)];
      mean[c] = sum / static_cast<double>(block.rows);
      for (int64_t r = 0; r < block.rows; ++r) {
        const double d = x[at(block, r, c)] - mean[c];
        squares += d * d;
      }
      m2[c] = squares;
    }
  }

  static void normalise(const BatchNormBlock& block, const void* x_, const void* center_,
                        const void* scale_, const void* shift_, void* y_) {
    const T* x = static_cast<const T*>(x_);
    const P* center = static_cast<const P*>(center_);
    const P *scale = static_cast<const P*>(scale_), *shift = static_cast<const P*>(shift_);
    T* y = static_cast<T*>(y_);
    for (int64_t r = 0; r < block.rows; ++r)
      for (int64_t c = 0; c < block.channels; ++c) {
        const int64_t i = at(block, r, c);
        y[i] = static_cast<T>((x[i] - center[c]) * scale[c] + shift[c]);
      }
  }

  static void backward_reduce(const BatchNormBlock& block, const void* x_, const void* dy_,
                              const void* center_, double* sum_dy, double* sum_dyx) {
    const T *x = static_cast<const T*>(x_), *dy = static_cast<const T*>(dy_);
    const P* center = static_cast<const P*>(center_);
    for (int64_t c = 0; c < block.channels; ++c) {
      sum_dy[c] = sum_dyx[c] = 0;
      for (int64_t r = 0; r < block.rows; ++r) {
        const int64_t i = at(block, r, c);
        sum_dy[c] += dy[i];
        sum_dyx[c] += static_cast<double>(dy[i]) * (static_cast<double>(x[i]) - center[c]);
      }
    }
  }

  static void backward_apply(const BatchNormBlock& block, const void* x_, const void* dy_,
                             const void* center_, const void* a_, const void* b_, const void* c_,
                             void* dx_) {
    const T *x = static_cast<const T*>(x_), *dy = static_cast<const T*>(dy_);
    const P *a = static_cast<const P*>(a_), *b = static_cast<const P*>(b_);
    const P *constant = static_cast<const P*>(c_), *center = static_cast<const P*>(center_);
    T* dx = static_cast<T*>(dx_);
    for (int64_t r = 0; r < block.rows; ++r)
      for (int64_t c = 0; c < block.channels; ++c) {
        const int64_t i = at(block, r, c);
        dx[i] = static_cast<T>(a[c] * dy[i] + (b[c] * (x[i] - center[c]) + constant[c]));
      }
  }

  static constexpr BatchNormKernel record(const char* name, DType dtype) {
    return {name, kIsa, dtype, nhwc, stats, normalise, backward_reduce, backward_apply};
  }
};

constexpr BatchNormKernel kRecords[] = {
    Reference<float, float, true>::record(QUERN_NAMED("batch_norm_f32_nhwc"), DType::f32),
    Reference<float, float, false>::record(QUERN_NAMED("batch_norm_f32_nchw"), DType::f32),
    Reference<bfloat16, float, true>::record(QUERN_NAMED("batch_norm_bf16_nhwc"), DType::bf16),
    Reference<bfloat16, float, false>::record(QUERN_NAMED("batch_norm_bf16_nchw"), DType::bf16),
    Reference<double, double, true>::record(QUERN_NAMED("batch_norm_f64_nhwc"), DType::f64),
    Reference<double, double, false>::record(QUERN_NAMED("batch_norm_f64_nchw"), DType::f64),
};

}  // namespace

QUERN_KERNELS(BatchNormKernel, batch_norm, kRecords)

}  // namespace quern::kernels
