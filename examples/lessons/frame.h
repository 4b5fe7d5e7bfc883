// What stands around a convolution in the network: its tensors in either format, what x is read
// through, and what becomes of the sums (kernels/epilogue.h).
#pragma once
#include <algorithm>

#include "quern/ops/kernels/activation.h"
#include "quern/ops/kernels/conv/conv_kernel.h"
#include "quern/ops/kernels/epilogue.h"
#include "quern/tensor/parallel.h"
#include "quern/tensor/storage.h"

namespace quern::lessons {

/// A tensor of pixels and channels, in either format.
struct Image {
  Image(MemoryFormat format, int64_t n, int64_t c, int64_t h, int64_t w)
      : strides(format, c, h, w), pixels(n * h * w), channels(c), height(h), width(w) {}
  int64_t at(int64_t pixel) const {  // of its channel 0
    const int64_t area = height * width;
    return pixel / area * strides.n + pixel / width % height * strides.y +
           pixel % width * strides.x;
  }
  kernels::ImageStrides strides;
  int64_t pixels, channels, height, width;
};

inline float item(const void* array, int64_t i, float otherwise) {
  return array ? static_cast<const float*>(array)[i] : otherwise;
}

/// From sums, which lie as `of_sums` has them, to what is stored (kernels/epilogue.h), a few
/// channels at a time.
template <class T>
void complete(const Image& image, const Image& of_sums, const float* sums,
              const kernels::Epilogue& e, T* out) {
  using Kind = kernels::Epilogue::Kind;
  constexpr int64_t kChannels = 16;
  const auto *residual = static_cast<const T*>(e.residual), *x = static_cast<const T*>(e.x);
  parallel_chunks(image.channels, kChannels, [&](int64_t begin, int64_t end) {
    double first[kChannels] = {}, second[kChannels] = {};
    const auto each = [&](auto f) {
      for (int64_t pixel = 0; pixel < image.pixels; ++pixel) {
        const int64_t from = of_sums.at(pixel), at = image.at(pixel);
        for (int64_t c = begin; c < end; ++c)
          f(c, sums[from + c * of_sums.strides.c], at + c * image.strides.c);
      }
    };
    if (e.kind == Kind::moments) {
      each([&](int64_t c, float v, int64_t) { first[c - begin] += static_cast<double>(v); });
      for (double& sum : first) sum /= static_cast<double>(image.pixels);
    }
    each([&](int64_t c, float v, int64_t at) {
      if (e.kind == Kind::activate) v += item(e.map.shift, c, 0);
      if (residual) v += static_cast<float>(residual[at]);
      v = kernels::activated(v, e.activation);
      if (e.kind == Kind::moments) {
        const double distance = static_cast<double>(v) - first[c - begin];
        second[c - begin] += distance * distance;
      }
      if (e.kind == Kind::gradient) {
        const float distance = static_cast<float>(x[at]) - item(e.map.center, c, 0);
        v = kernels::through(v, distance * item(e.map.scale, c, 1) + item(e.map.shift, c, 0),
                             e.map.activation);
        first[c - begin] += static_cast<double>(v);
        second[c - begin] += static_cast<double>(v) * static_cast<double>(distance);
      }
      out[at] = static_cast<T>(v);
    });
    if (!e.first) return;
    std::copy_n(first, end - begin, static_cast<double*>(e.first) + begin);
    std::copy_n(second, end - begin, static_cast<double*>(e.second) + begin);
  });
}

/// A tensor as `to` has it, read through the prologue: itself where it is so already.
template <class T>
class Arranged {
 public:
  Arranged(const Image& image, const Image& to, const T* source,
           const kernels::ChannelMap& map = {})
      : copied_(image.strides.c != to.strides.c || map.scale),
        copy_(copied_ ? image.pixels * image.channels * int64_t{sizeof(T)} : 0),
        data_(copied_ ? copy_.as<T>() : source) {
    if (!copied_) return;
    T* const copy = copy_.as<T>();
    parallel_chunks(image.pixels, 64, [&](int64_t begin, int64_t end) {
      for (int64_t pixel = begin; pixel < end; ++pixel) {
        for (int64_t c = 0; c < image.channels; ++c) {
          T v = source[image.at(pixel) + c * image.strides.c];
          if (map.scale) {
            const float distance = static_cast<float>(v) - item(map.center, c, 0);
            v = static_cast<T>(kernels::activated(
                distance * item(map.scale, c, 1) + item(map.shift, c, 0), map.activation));
          }
          copy[to.at(pixel) + c * to.strides.c] = v;
        }
      }
    });
  }
  const T* data() const { return data_; }

 private:
  bool copied_;
  Workspace copy_;
  const T* data_;
};

}  // namespace quern::lessons
