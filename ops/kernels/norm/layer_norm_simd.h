// The layer_norm kernels on vectors of xsimd, once an instruction set. A row is read again and
// again from the cache; sums over it are f32 (f64 for f64) within a segment, which bounds their
// error, and f64 beyond.
#pragma once
#include "quern/ops/kernels/moments_simd.h"
#include "quern/ops/kernels/norm/layer_norm_kernel.h"

namespace quern::kernels {
namespace {

template <class T>
struct RowNorm {
  using V = Vec<T>;
  using P = Wide<T>;
  static constexpr int64_t kSegment = 4096;

  /// h = (x - mean)·invstd of a row's x: what the mean loses when it is rounded is in shift.
  struct Map {
    Map(double mean, P invstd)
        : center(static_cast<P>(mean)),
          scale(invstd),
          shift(static_cast<P>((static_cast<double>(static_cast<P>(mean)) - mean) * invstd)) {}
    V operator()(V x) const { return normalised(x, center, scale, shift); }
    V center, scale, shift;
  };

  static int64_t segment(int64_t begin, int64_t columns) {
    return columns - begin < kSegment ? columns - begin : kSegment;
  }

  static void row_moments(const T* x, int64_t columns, double* mean, double* m2) {
    run_moments<T>(x, segment(0, columns), mean, m2);
    for (int64_t begin = kSegment; begin < columns; begin += kSegment) {
      const int64_t n = segment(begin, columns);
      double next_mean, next_m2;
      run_moments<T>(x + begin, n, &next_mean, &next_m2);
      const double share = static_cast<double>(n) / static_cast<double>(begin + n);
      const double delta = next_mean - *mean;
      *mean += delta * share;
      *m2 += next_m2 + delta * delta * share * static_cast<double>(begin);
    }
  }

  static void forward(const LayerNormRows& size, const void* x_, const void* weight_,
                      const void* bias_, double eps, void* y_, double* mean_, void* invstd_) {
    const P *weight = static_cast<const P*>(weight_), *bias = static_cast<const P*>(bias_);
    for (int64_t r = 0; r < size.rows; ++r) {
      const T* x = static_cast<const T*>(x_) + r * size.columns;
      T* y = static_cast<T*>(y_) + r * size.columns;
      double mean, m2;
      row_moments(x, size.columns, &mean, &m2);
      const P invstd =
          static_cast<P>(1 / __builtin_sqrt(m2 / static_cast<double>(size.columns) + eps));
      const Map map(mean, invstd);
      each_vector<T>(size.columns, [&](int64_t i, int, auto part) {
        const V h = map(part.load(x + i));
        part.store(y + i, fused(h, part.load(weight + i), part.load(bias + i)));
      });
      mean_[r] = mean;
      static_cast<P*>(invstd_)[r] = invstd;
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
      const Map map(mean_[r], static_cast<const P*>(invstd_)[r]);
      double g_sum = 0, gh_sum = 0;
      for (int64_t begin = 0; begin < size.columns; begin += kSegment) {
        V g_part[4], gh_part[4];
        unroll<4>([&](int k) { g_part[k] = gh_part[k] = V(0); });
        each_vector<T, 4>(segment(begin, size.columns), [&](int64_t j, int k, auto part) {
          const int64_t i = begin + j;
          const V dyi = part.load(dy + i), h = map(part.load(x + i));
          const V g = dyi * part.load(weight + i);
          g_part[k] += g;
          gh_part[k] = fused(g, h, gh_part[k]);
          part.store(dweight + i, fused(dyi, h, part.load(dweight + i)));
          part.store(dbias + i, part.load(dbias + i) + dyi);
        });
        g_sum += sum_of_four(g_part), gh_sum += sum_of_four(gh_part);
      }
      const V g_mean(static_cast<P>(g_sum / n)), gh_mean(static_cast<P>(gh_sum / n));
      each_vector<T>(size.columns, [&](int64_t i, int, auto part) {
        const V g = part.load(dy + i) * part.load(weight + i);
        const V h = map(part.load(x + i));
        part.store(dx + i, map.scale * fused_minus(h, gh_mean, g - g_mean));
      });
    }
  }

  static constexpr LayerNormKernel record(const char* name, DType dtype) {
    return {name, kIsa, dtype, forward, backward};
  }
};

constexpr LayerNormKernel kRecords[] = {
    RowNorm<float>::record(QUERN_NAMED("layer_norm_f32"), DType::f32),
    RowNorm<bfloat16>::record(QUERN_NAMED("layer_norm_bf16"), DType::bf16),
    RowNorm<double>::record(QUERN_NAMED("layer_norm_f64"), DType::f64),
};

}  // namespace

QUERN_KERNELS(LayerNormKernel, layer_norm, kRecords)

}  // namespace quern::kernels
