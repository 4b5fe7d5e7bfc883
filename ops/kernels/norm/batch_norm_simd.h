// The batch_norm kernels on vectors of xsimd, once an instruction set. All are bound by memory; the
// two passes of `stats` meet in the cache, as the driver's blocks are made to fit there.
#pragma once
#include "quern/ops/kernels/columns_simd.h"
#include "quern/ops/kernels/moments_simd.h"
#include "quern/ops/kernels/norm/batch_norm_kernel.h"

namespace quern::kernels {
namespace {

/// Vectors lie along channels.
template <class T>
struct Nhwc {
  using V = Vec<T>;
  using P = Wide<T>;
  static constexpr int64_t lanes = kLanes<T>;

  static void stats(const BatchNormBlock& block, const void* x_, double* mean, double* m2) {
    const T* x = static_cast<const T*>(x_);
    const P n = static_cast<P>(block.rows);
    each_columns<T>(block.channels, [&](int64_t c, auto count, auto part) {
      V sum[count], d_sum[count], d2_sum[count];
      unroll<count>([&](int v) { sum[v] = d_sum[v] = d2_sum[v] = V(0); });
      for (int64_t r = 0; r < block.rows; ++r)
        unroll<count>([&](int v) { sum[v] += part.load(x + r * block.stride + c + v * lanes); });
      unroll<count>([&](int v) { sum[v] /= V(n); });
      for (int64_t r = 0; r < block.rows; ++r)
        unroll<count>([&](int v) {
          const V d = part.load(x + r * block.stride + c + v * lanes) - sum[v];
          d_sum[v] += d;
          d2_sum[v] = fused(d, d, d2_sum[v]);
        });
      P pivot[count * lanes], d[count * lanes], d2[count * lanes];
      unroll<count>([&](int v) {
        store(pivot + v * lanes, sum[v]);
        store(d + v * lanes, d_sum[v]);
        store(d2 + v * lanes, d2_sum[v]);
      });
      const int64_t width = count * lanes < block.channels - c ? count * lanes : block.channels - c;
      for (int64_t i = 0; i < width; ++i)
        corrected_moments(n, pivot[i], d[i], d2[i], mean + c + i, m2 + c + i);
    });
  }

  static void normalise(const BatchNormBlock& block, const void* x_, const void* center_,
                        const void* scale_, const void* shift_, void* y_) {
    const P* center = static_cast<const P*>(center_);
    const P *scale = static_cast<const P*>(scale_), *shift = static_cast<const P*>(shift_);
    for (int64_t r = 0; r < block.rows; ++r) {
      const T* x = static_cast<const T*>(x_) + r * block.stride;
      T* y = static_cast<T*>(y_) + r * block.stride;
      each_vector<T>(block.channels, [&](int64_t c, int, auto part) {
        fetch_page_ahead(x + c);
        part.store(y + c, normalised(part.load(x + c), part.load(center + c), part.load(scale + c),
                                     part.load(shift + c)));
      });
    }
  }

  static void backward_reduce(const BatchNormBlock& block, const void* x_, const void* dy_,
                              const void* center_, double* sum_dy, double* sum_dyx) {
    const T *x = static_cast<const T*>(x_), *dy = static_cast<const T*>(dy_);
    const P* center = static_cast<const P*>(center_);
    each_columns<T>(block.channels, [&](int64_t c, auto count, auto part) {
      V m[count], s[count], sx[count];
      unroll<count>([&](int v) {
        m[v] = part.load(center + c + v * lanes);
        s[v] = sx[v] = V(0);
      });
      for (int64_t r = 0; r < block.rows; ++r)
        unroll<count>([&](int v) {
          const int64_t i = r * block.stride + c + v * lanes;
          const V g = part.load(dy + i);
          s[v] += g;
          sx[v] = fused(g, part.load(x + i) - m[v], sx[v]);
        });
      store_columns<T>(s, block.channels - c, sum_dy + c);
      store_columns<T>(sx, block.channels - c, sum_dyx + c);
    });
  }

  static void backward_apply(const BatchNormBlock& block, const void* x_, const void* dy_,
                             const void* center_, const void* a_, const void* b_, const void* c_,
                             void* dx_) {
    const P *a = static_cast<const P*>(a_), *b = static_cast<const P*>(b_);
    const P *constant = static_cast<const P*>(c_), *center = static_cast<const P*>(center_);
    for (int64_t r = 0; r < block.rows; ++r) {
      const T* x = static_cast<const T*>(x_) + r * block.stride;
      const T* dy = static_cast<const T*>(dy_) + r * block.stride;
      T* dx = static_cast<T*>(dx_) + r * block.stride;
      each_vector<T>(block.channels, [&](int64_t c, int, auto part) {
        fetch_page_ahead(x + c), fetch_page_ahead(dy + c);
        const V bx = normalised(part.load(x + c), part.load(center + c), part.load(b + c),
                                part.load(constant + c));
        part.store(dx + c, fused(part.load(a + c), part.load(dy + c), bx));
      });
    }
  }
};

/// Vectors lie along the pixels of one channel after another.
template <class T>
struct Nchw {
  using V = Vec<T>;
  using P = Wide<T>;

  static void stats(const BatchNormBlock& block, const void* x, double* mean, double* m2) {
    for (int64_t c = 0; c < block.channels; ++c)
      run_moments<T>(static_cast<const T*>(x) + c * block.stride, block.rows, mean + c, m2 + c);
  }

  static void normalise(const BatchNormBlock& block, const void* x_, const void* center_,
                        const void* scale_, const void* shift_, void* y_) {
    for (int64_t c = 0; c < block.channels; ++c) {
      const T* x = static_cast<const T*>(x_) + c * block.stride;
      T* y = static_cast<T*>(y_) + c * block.stride;
      const V center(static_cast<const P*>(center_)[c]);
      const V scale(static_cast<const P*>(scale_)[c]), shift(static_cast<const P*>(shift_)[c]);
      each_vector<T>(block.rows, [&](int64_t i, int, auto part) {
        part.store(y + i, normalised(part.load(x + i), center, scale, shift));
      });
    }
  }

  static void backward_reduce(const BatchNormBlock& block, const void* x_, const void* dy_,
                              const void* center_, double* sum_dy, double* sum_dyx) {
    for (int64_t c = 0; c < block.channels; ++c) {
      const T* x = static_cast<const T*>(x_) + c * block.stride;
      const T* dy = static_cast<const T*>(dy_) + c * block.stride;
      const V center(static_cast<const P*>(center_)[c]);
      V s[4], sx[4];
      unroll<4>([&](int k) { s[k] = sx[k] = V(0); });
      each_vector<T, 4>(block.rows, [&](int64_t i, int k, auto part) {
        const V g = part.load(dy + i);
        s[k] += g;
        sx[k] = fused(g, part.load(x + i) - center, sx[k]);
      });
      sum_dy[c] = sum_of_four(s);
      sum_dyx[c] = sum_of_four(sx);
    }
  }

  static void backward_apply(const BatchNormBlock& block, const void* x_, const void* dy_,
                             const void* center_, const void* a_, const void* b_, const void* c_,
                             void* dx_) {
    for (int64_t c = 0; c < block.channels; ++c) {
      const T* x = static_cast<const T*>(x_) + c * block.stride;
      const T* dy = static_cast<const T*>(dy_) + c * block.stride;
      T* dx = static_cast<T*>(dx_) + c * block.stride;
      const V a(static_cast<const P*>(a_)[c]), b(static_cast<const P*>(b_)[c]);
      const V constant(static_cast<const P*>(c_)[c]), center(static_cast<const P*>(center_)[c]);
      each_vector<T>(block.rows, [&](int64_t i, int, auto part) {
        part.store(dx + i,
                   fused(a, part.load(dy + i), normalised(part.load(x + i), center, b, constant)));
      });
    }
  }
};

template <class Loops>
constexpr BatchNormKernel record(const char* name, DType dtype, bool nhwc) {
  return {name,
          kIsa,
          dtype,
          nhwc,
          Loops::stats,
          Loops::normalise,
          Loops::backward_reduce,
          Loops::backward_apply};
}

constexpr BatchNormKernel kRecords[] = {
    record<Nhwc<float>>(QUERN_NAMED("batch_norm_f32_nhwc"), DType::f32, true),
    record<Nchw<float>>(QUERN_NAMED("batch_norm_f32_nchw"), DType::f32, false),
    record<Nhwc<bfloat16>>(QUERN_NAMED("batch_norm_bf16_nhwc"), DType::bf16, true),
    record<Nchw<bfloat16>>(QUERN_NAMED("batch_norm_bf16_nchw"), DType::bf16, false),
    record<Nhwc<double>>(QUERN_NAMED("batch_norm_f64_nhwc"), DType::f64, true),
    record<Nchw<double>>(QUERN_NAMED("batch_norm_f64_nchw"), DType::f64, false),
};

}  // namespace

QUERN_KERNELS(BatchNormKernel, batch_norm, kRecords)

}  // namespace quern::kernels
