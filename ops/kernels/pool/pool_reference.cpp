// The pool kernels as their formulas read: the oracle.
#include <limits>

#include "quern/ops/kernels/pool/pool_kernel.h"
#include "quern/ops/kernels/pool/pool_taps.h"
#include "quern/tensor/bfloat16.h"

namespace quern::kernels {
namespace {

/// T: the elements' type. Sums are f64.
template <class T>
struct Reference {
  template <class Index>
  static void max_forward(const Pool& pool, const T* x, int64_t row, T* y, Index* index) {
    const PoolRange rows = pool.h.inputs[row];
    for (int64_t ow = 0; ow < pool.w.out; ++ow) {
      const PoolRange columns = pool.w.inputs[ow];
      for (int64_t c = 0; c < pool.channels; ++c, ++y) {
        double best = -std::numeric_limits<double>::infinity();
        int64_t best_h = rows.begin, best_w = columns.begin;
        for (int64_t h = rows.begin; h < rows.end; h += pool.h.dilation)
          for (int64_t w = columns.begin; w < columns.end; w += pool.w.dilation) {
            const double value = x[(h * pool.w.in + w) * pool.channels + c];
            if (value > best || value != value) best = value, best_h = h, best_w = w;
          }
        *y = static_cast<T>(best);
        if (index != nullptr)
          *index++ = static_cast<Index>(tap_of(pool.h, best_h, row) * pool.w.kernel +
                                        tap_of(pool.w, best_w, ow));
      }
    }
  }

  template <class Index>
  static void max_backward(const Pool& pool, const T* dy, const Index* index, int64_t row, T* dx) {
    const PoolRange rows = pool.h.outputs[row];
    for (int64_t w = 0; w < pool.w.in; ++w) {
      const PoolRange columns = pool.w.outputs[w];
      for (int64_t c = 0; c < pool.channels; ++c) {
        double sum = 0;
        for (int64_t oh = rows.begin; oh < rows.end; ++oh)
          for (int64_t ow = columns.begin; ow < columns.end; ++ow) {
            const int64_t th = tap_of(pool.h, row, oh), tw = tap_of(pool.w, w, ow);
            const int64_t i = (oh * pool.w.out + ow) * pool.channels + c;
            if (th >= 0 && tw >= 0 && index[i] == th * pool.w.kernel + tw) sum += dy[i];
          }
        *dx++ = static_cast<T>(sum);
      }
    }
  }

  static void avg_forward(const Pool& pool, const T* x, int64_t row, PoolRange channels, T* y) {
    const PoolRange rows = pool.h.inputs[row];
    for (int64_t ow = 0; ow < pool.w.out; ++ow) {
      const PoolRange columns = pool.w.inputs[ow];
      for (int64_t c = channels.begin; c < channels.end; ++c) {
        double sum = 0;
        for (int64_t h = rows.begin; h < rows.end; ++h)
          for (int64_t w = columns.begin; w < columns.end; ++w)
            sum += x[(h * pool.w.in + w) * pool.channels + c];
        y[ow * pool.channels + c] =
            static_cast<T>(sum / static_cast<double>(pool.h.divisor[row] * pool.w.divisor[ow]));
      }
    }
  }

  static void avg_backward(const Pool& pool, const T* dy, int64_t row, T* dx) {
    const PoolRange rows = pool.h.outputs[row];
    for (int64_t w = 0; w < pool.w.in; ++w) {
      const PoolRange columns = pool.w.outputs[w];
      for (int64_t c = 0; c < pool.channels; ++c) {
        double sum = 0;
        for (int64_t oh = rows.begin; oh < rows.end; ++oh)
          for (int64_t ow = columns.begin; ow < columns.end; ++ow)
            sum += dy[(oh * pool.w.out + ow) * pool.channels + c] /
                   static_cast<double>(pool.h.divisor[oh] * pool.w.divisor[ow]);
        *dx++ = static_cast<T>(sum);
      }
    }
  }
};

template <class T>
constexpr PoolKernel record(const char* name, DType dtype) {
  return PoolRecord<Reference<T>, T>::of(name, dtype, 1, INT64_MAX);
}

constexpr PoolKernel kRecords[] = {
    record<float>(QUERN_NAMED("pool_f32"), DType::f32),
    record<bfloat16>(QUERN_NAMED("pool_bf16"), DType::bf16),
    record<double>(QUERN_NAMED("pool_f64"), DType::f64),
};

}  // namespace

QUERN_KERNELS(PoolKernel, pool, kRecords)

}  // namespace quern::kernels
