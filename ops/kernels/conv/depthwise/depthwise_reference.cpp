// The depthwise kernels spelled out: a channel after the other.
#include <algorithm>

#include "quern/ops/kernels/activation.h"
#include "quern/ops/kernels/conv/depthwise/depthwise_kernel.h"
#include "quern/tensor/bfloat16.h"

namespace quern::kernels {
namespace {

template <class T>
struct NaiveDepthwise {
  /// f(source element, place in the weight) for each tap of output i that is no padding.
  template <class F>
  static void each_tap(const DepthwiseWindow& w, int64_t i, int64_t channel, F f) {
    for (int64_t r = 0; r < w.rows; ++r)
      for (int64_t t = 0; t < w.taps; ++t) {
        const int64_t x = i * w.stride + w.offset + t * w.offset_step;
        if (x < 0 || x >= w.width) continue;
        const T* source = static_cast<const T*>(w.source) + r * w.source_row + x * w.pixel;
        const int64_t first = w.index ? w.index[channel] : channel - channel % w.group;
        for (int64_t j = 0; j < (w.index ? w.steps : w.group); ++j)
          f(static_cast<float>(source[first + j]),
            r * w.weight_row + t * w.weight_tap + j * w.weight_channel + channel);
      }
  }

  static float stored(const DepthwiseStore& a, float sum, int64_t channel) {
    return activated(a.shift ? sum + a.shift[channel] : sum, a.activation);
  }

  template <class To>
  static void sum_to(const DepthwiseWindow& w, const float* weight, const DepthwiseStore& a,
                     To* out, int64_t out_pixel) {
    for (int64_t i = 0; i < w.outputs; ++i)
      for (int64_t c = 0; c < w.channels; ++c) {
        float sum = 0;
        each_tap(w, i, c, [&](float x, int64_t tap) { sum += x * weight[tap]; });
        if (a.first) {
          const float distance = sum - a.pivot[c];
          a.first[c] += distance;
          a.second[c] += distance * distance;
        }
        out[i * out_pixel + c] = static_cast<To>(stored(a, sum, c));
      }
  }

  static void sum(const DepthwiseWindow& w, const float* weight, float* out, int64_t out_pixel) {
    sum_to(w, weight, {}, out, out_pixel);
  }

  static void store(const DepthwiseWindow& w, const float* weight, const DepthwiseStore& a,
                    void* out, int64_t out_pixel) {
    sum_to(w, weight, a, static_cast<T*>(out), out_pixel);
  }

  static void store_rows(const DepthwiseWindow& w, const DepthwiseRows& rows, const float* weight,
                         const DepthwiseStore& a, void* out, int64_t out_pixel) {
    for (int64_t i = 0; i < rows.count; ++i) {
      const int64_t first = i * w.stride, begin = std::max<int64_t>(rows.begin - first, 0);
      DepthwiseWindow row = w;
      row.source = static_cast<const T*>(w.source) + (first + begin) * w.source_row;
      row.rows = std::max<int64_t>(std::min(rows.end - first, w.rows) - begin, 0);
      store(row, weight + begin * w.weight_row, a, static_cast<T*>(out) + i * rows.out_row,
            out_pixel);
    }
  }
  static bool slides(int64_t, int64_t) { return true; }
  static bool permutes(int64_t, int64_t) { return true; }

  static void store_plane(const DepthwisePlane& p, const float* weight, const DepthwiseStore& a,
                          void* out) {
    for (int64_t i = 0; i < p.out_height * p.out_width; ++i) {
      const int64_t channel = p.channels == 0 ? 0 : i % p.out_width % p.channels;
      float sum = 0;
      for (int64_t k = 0; k < p.sources; ++k)
        for (int64_t r = 0; r < p.rows; ++r)
          for (int64_t t = 0; t < p.taps; ++t) {
            const int64_t y = i / p.out_width + p.top + r;
            const int64_t x = i % p.out_width + p.left + t * p.step;
            if (y < 0 || y >= p.height || x < 0 || x >= p.width) continue;
            sum += static_cast<float>(
                       static_cast<const T*>(p.source)[(k * p.height + y) * p.width + x]) *
                   weight[k * p.weight_source + r * p.weight_row + t * p.weight_tap + channel];
          }
      static_cast<T*>(out)[i] = static_cast<T>(stored(a, sum, channel));
    }
  }

  static void add_gradient(const DepthwiseWindow& w, const void* dy, int64_t dy_pixel,
                           float* gradient) {
    for (int64_t i = 0; i < w.outputs; ++i)
      for (int64_t c = 0; c < w.channels; ++c) {
        const float d = static_cast<float>(static_cast<const T*>(dy)[i * dy_pixel + c]);
        each_tap(w, i, c, [&](float x, int64_t tap) { gradient[tap] += x * d; });
      }
  }

  static void backward(const DepthwiseWindow& w, const float* weight, const DepthwiseBackward& b) {
    const auto of_channel = [](const void* p, int64_t c) {
      return p ? static_cast<const float*>(p)[c] : 0;
    };
    for (int64_t i = 0; i < w.outputs; ++i)
      for (int64_t c = 0; c < w.channels; ++c) {
        const float x = static_cast<float>(static_cast<const T*>(b.x)[i * b.pixel + c]);
        const float from_center = x - of_channel(b.map.center, c);
        const float v = from_center * of_channel(b.map.scale, c) + of_channel(b.map.shift, c);
        const bool mapped = b.map.scale != nullptr;
        const float z =
            mapped ? static_cast<float>(static_cast<T>(activated(v, b.map.activation))) : x;
        float sum = 0;
        each_tap(w, i, c, [&](float dy, int64_t tap) {
          sum += dy * weight[tap];
          b.gradient[tap] += dy * z;
        });
        if (mapped) {
          sum = through(sum, v, b.map.activation);
          b.first[c] += sum;
          b.second[c] += sum * from_center;
        }
        static_cast<T*>(b.dx)[i * b.pixel + c] = static_cast<T>(sum);
      }
  }

  static void spread(const DepthwiseSpread& s) {
    for (int64_t i = 0; i < s.steps; ++i)
      for (int64_t p = 0; p < s.pixels; ++p)
        for (int64_t c = 0; c < s.channels; ++c)
          static_cast<T*>(s.to)[i * s.to_step + p * s.to_pixel + c] =
              static_cast<const T*>(s.from)[p * s.from_pixel + s.index[c] + i];
  }

  static constexpr DepthwiseKernel record(const char* name, DType dtype) {
    return {name,   kIsa,     dtype,       sum,          store,    store_rows,
            slides, permutes, store_plane, add_gradient, backward, spread};
  }
};

constexpr DepthwiseKernel kRecords[] = {
    NaiveDepthwise<float>::record(QUERN_NAMED("depthwise_f32"), DType::f32),
    NaiveDepthwise<bfloat16>::record(QUERN_NAMED("depthwise_bf16"), DType::bf16),
};

}  // namespace

QUERN_KERNELS(DepthwiseKernel, depthwise, kRecords)

}  // namespace quern::kernels
