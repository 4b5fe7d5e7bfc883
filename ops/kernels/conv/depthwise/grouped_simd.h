// The depthwise loops for groups of 2, 4 or 8 channels, or of 16 that are a vector. A lane is an
// output channel: channel i of its group comes to it from its neighbours by a shuffle of the
// pixel's vector, or, where a group is of 16 or longer than a vector, as one value for all lanes.
//
//     x of a pixel     a b c d | e f g h        spread<1>     b b b b | f f f f
//
// Where there are products of two bf16 at a time, it comes with its neighbour, or, for gradients,
// which sum over pixels, with the same channel of the next pixel.
#pragma once
#include "quern/ops/kernels/activation_simd.h"
#include "quern/ops/kernels/conv/depthwise/window_simd.h"

namespace quern::kernels {
namespace {

/// A pixel's channels from c on, of which a lane meets one of its group at a step.
template <class T, int group>
struct Singles {
  using V = Vec<T>;
  using Weight = V;
  static constexpr int lanes = static_cast<int>(kLanes<T>), steps = group;
  static constexpr bool shuffles = group <= lanes && group < 16;  // else each is loaded

  V all;
  const T* first;  // of c's group, where each is loaded

  static Weight weight(const float* p) { return load(p); }
  __attribute__((always_inline)) void load_from(const T* pixel, int64_t c) {
    if constexpr (shuffles) all = load(pixel + c);
    else first = pixel + c / group * group;
  }
  /// sum + channel i of the group · weight
  template <int i>
  __attribute__((always_inline)) V add_to(V sum, Weight weight) const {
    return fused(spread<i>(), weight, sum);
  }
  template <int i>
  __attribute__((always_inline)) V spread() const {
    if constexpr (shuffles) return shuffle<i>(std::make_integer_sequence<int, lanes>{});
    else return V(static_cast<float>(first[i]));
  }
  template <int i, int... lane>
  __attribute__((always_inline)) V shuffle(std::integer_sequence<int, lane...>) const {
    return (typename V::register_type)__builtin_shufflevector(all.data, all.data,
                                                              (lane / group * group + i)...);
  }
};

#ifdef __AVX512BF16__
/// The same of bf16, of which it meets two.
template <int group>
struct Pairs {
  using V = Vec<bfloat16>;
  using Weight = Words;  // clang 16 at -O0 loses a __m512bh between functions
  static constexpr int steps = group / 2;

  Words all;  // in each four lanes the pairs of their groups

  static Weight weight(const float* p) { return (Weight)_mm512_loadu_ps(p); }
  __attribute__((always_inline)) void load_from(const bfloat16* pixel, int64_t c) {
    Native<int64_t, 4>::type v;
    __builtin_memcpy(&v, pixel + c, sizeof(v));
    if constexpr (group == 8) all = (Words)__builtin_shufflevector(v, v, 0, 1, 0, 1, 2, 3, 2, 3);
    else all = (Words)__builtin_shufflevector(v, v, 0, 0, 1, 1, 2, 2, 3, 3);
  }
  template <int i>
  __attribute__((always_inline)) V add_to(V sum, Weight weight) const {
    const Words pair = shuffle<i>(std::make_integer_sequence<int, 16>{});
    return _mm512_dpbf16_ps(sum.data, (__m512bh)pair, (__m512bh)weight);
  }
  template <int i, int... lane>
  __attribute__((always_inline)) Words shuffle(std::integer_sequence<int, lane...>) const {
    return __builtin_shufflevector(all, all, (lane / 4 * 4 + (group == 2 ? lane % 4 / 2 : i))...);
  }
};

/// The same of groups as long as a vector of sums: each pair is one value for all lanes.
template <>
struct Pairs<16> {
  using V = Vec<bfloat16>;
  using Weight = Words;
  static constexpr int steps = 8;

  const bfloat16* first;

  static Weight weight(const float* p) { return (Weight)_mm512_loadu_ps(p); }
  __attribute__((always_inline)) void load_from(const bfloat16* pixel, int64_t c) {
    first = pixel + c / 16 * 16;
  }
  template <int i>
  __attribute__((always_inline)) V add_to(V sum, Weight weight) const {
    int pair;
    __builtin_memcpy(&pair, first + 2 * i, sizeof(pair));
    return _mm512_dpbf16_ps(sum.data, (__m512bh)_mm512_set1_epi32(pair), (__m512bh)weight);
  }
};

/// What two pixels add to gradients: a lane meets a channel of its group of both at a step.
template <int group>
struct TwoPixels {
  using V = Vec<bfloat16>;
  static constexpr int count = 2;

  Words dy, x;

  /// From channel c on, where pointers are.
  __attribute__((always_inline)) void load_from(const bfloat16* x0, const bfloat16* x1,
                                                const bfloat16* dy0, const bfloat16* dy1, int64_t) {
    x = both(x0, x1), dy = both(dy0, dy1);
  }
  __attribute__((always_inline)) static Words both(const bfloat16* a, const bfloat16* b) {
    Halves low, high;
    __builtin_memcpy(&low, a, sizeof(low));
    __builtin_memcpy(&high, b, sizeof(high));
    return widen(low) | widen(high) << 16;
  }
  /// sum + channel i of the group · dy
  template <int i>
  __attribute__((always_inline)) V add_to(V sum) const {
    const Words channel = shuffle<i>(std::make_integer_sequence<int, 16>{});
    return _mm512_dpbf16_ps(sum.data, (__m512bh)channel, (__m512bh)dy);
  }
  template <int i, int... lane>
  __attribute__((always_inline)) Words shuffle(std::integer_sequence<int, lane...>) const {
    return __builtin_shufflevector(x, x, (lane / group * group + i)...);
  }
};
template <class T>
inline constexpr bool kMultipliesPairs = std::is_same_v<T, bfloat16>;
#else
template <int group>
struct Pairs;
template <int group>
struct TwoPixels;
template <class T>
inline constexpr bool kMultipliesPairs = false;
#endif

/// What a pixel adds to gradients.
template <class T, int group>
struct OnePixel {
  using V = Vec<T>;
  static constexpr int count = 1;

  Singles<T, group> x;
  V dy;

  __attribute__((always_inline)) void load_from(const T* x0, const T*, const T* dy0, const T*,
                                                int64_t c) {
    x.load_from(x0 - c, c), dy = load(dy0);
  }
  template <int i>
  __attribute__((always_inline)) V add_to(V sum) const {
    return x.template add_to<i>(sum, dy);
  }
};

template <class T, int group>
struct GroupedLoops {
  using V = Vec<T>;
  using Pixel = std::conditional_t<kMultipliesPairs<T>, Pairs<group>, Singles<T, group>>;
  using Pixels = std::conditional_t<kMultipliesPairs<T>, TwoPixels<group>, OnePixel<T, group>>;
  static constexpr int lanes = static_cast<int>(kLanes<T>);
  /// Outputs whose sums and pixels are in registers: a row of 56, 28 or 14 is so many whole blocks.
#if defined(__AVX512F__) || defined(__aarch64__)
  static constexpr int kOutputs = 14;
#else
  static constexpr int kOutputs = 7;
#endif
  /// Sums of each product of the gradient, so that additions need not wait for each other.
  static constexpr int kGradients = group < 8 ? 8 / group : 1;

  /// Outputs [begin, end) of `count` that read no padding, the first of them pixel `first`.
  struct Live {
    int64_t begin, end;
    Live(const DepthwiseWindow& w, int64_t first, int64_t count)
        : begin(first < 0 ? (w.stride - 1 - first) / w.stride : 0),
          end(first < w.width ? at_most(count, (w.width - first + w.stride - 1) / w.stride) : 0) {}
  };

  /// What the next row of outputs reads for `count` outputs: the vector of channels from c on.
  static void prefetch(const DepthwiseWindow& w, int64_t output, int64_t count, int64_t c) {
    const int64_t first = output * w.stride + w.offset, begin = first < 0 ? 0 : first;
    const int64_t end = at_most(w.width, first + (count - 1) * w.stride + w.taps * w.offset_step);
    const T* next = static_cast<const T*>(w.source) + c + w.to_next_row;
    for (int64_t r = w.rows > w.fresh ? w.rows - w.fresh : 0; r < w.rows; ++r)
      for (int64_t p = begin; p < end; ++p)
        __builtin_prefetch(next + r * w.source_row + p * w.pixel);
  }

  /// As a call, which takes sums in registers: inlined for each block it is most of the code, and
  /// not quicker.
  template <class... Seven>
  __attribute__((noinline)) static void store_seven(int64_t count, V shift, Activation activation,
                                                    Sums<T> out, int64_t to, int64_t apart,
                                                    Seven... sums) {
    const V sum[] = {sums...};
    store_sums(sum, count, shift, activation, out, to, apart);
  }

  static void sum(const DepthwiseWindow& w, const float* weight, const DepthwiseStore& a,
                  Sums<T> out, int64_t out_pixel) {
    for (int64_t output = 0; output < w.outputs;) {
      int64_t left = w.outputs - output;
      if constexpr (group == 16) {  // an output of a block that is not full takes twice as long
        if (left > 3 && left < 7 && output >= 7) output = w.outputs - 7, left = 7;
        else if (left > 7 && left < kOutputs) left = 7;
      }
      const int64_t count = at_most(left, kOutputs);
      for (int64_t begin = 0; begin < w.channels; begin += lanes) {
        const int64_t c = at_most(begin, w.channels - lanes);
        if (w.fresh > 0) prefetch(w, output, count, c);
        for (int64_t o = 0; o < count; ++o) out.own((output + o) * out_pixel + c);
        const V shift = a.shift ? load(a.shift + c) : V(0);
        const auto put = [&](int64_t o, auto... sums) __attribute__((always_inline)) {
          store_seven(left - o, shift, a.activation, out, (output + o) * out_pixel + c, out_pixel,
                      sums...);
        };
        if (left > 7) sum_block<kOutputs>(w, weight + c, output, count, c, put);
        else sum_block<7>(w, weight + c, output, left, c, put);
      }
      output += count;
    }
  }

  /// Outputs [begin, end) of a block, which read pixels so far apart.
  template <int begin, int end, int kBlock>
  __attribute__((always_inline)) static void add_tap(V (&sums)[kBlock], const T* pixel,
                                                     int64_t apart, const float* tap,
                                                     int64_t weight_channel, int64_t c) {
    // Of each a pointer, where values come from memory: more than seven do not fit in registers.
    constexpr int kAtOnce = group < 16 ? kBlock : 7;
    each<kBlock / kAtOnce>([&](auto part) __attribute__((always_inline)) {
      constexpr int from = part == 0 ? begin : part * kAtOnce,
                    to = part == kBlock / kAtOnce - 1 ? end : (part + 1) * kAtOnce;
      Pixel x[kBlock];
      each<to - from>([&](int o) __attribute__((always_inline)) {
        x[from + o].load_from(pixel + (from + o) * apart, c);
      });
      each<Pixel::steps>([&](auto i) __attribute__((always_inline)) {
        const auto b = Pixel::weight(tap + i * weight_channel);
        each<to - from>([&](int o) __attribute__((always_inline)) {
          sums[from + o] = x[from + o].template add_to<i>(sums[from + o], b);
        });
      });
    });
  }

  /// put(output, its sum and those of the six that follow) for a block.
  template <int kBlock, class Put>
  __attribute__((always_inline)) static void sum_block(const DepthwiseWindow& w,
                                                       const float* weight, int64_t output,
                                                       int64_t count, int64_t c, Put put) {
    V sums[kBlock];
    each<kBlock>([&](int o) __attribute__((always_inline)) { sums[o] = V(0); });
    for (int64_t r = 0; r < w.rows; ++r)
      for (int64_t t = 0; t < w.taps; ++t) {
        const int64_t first = output * w.stride + w.offset + t * w.offset_step;
        const float* tap = weight + r * w.weight_row + t * w.weight_tap;
        const T* pixel = static_cast<const T*>(w.source) + r * w.source_row + first * w.pixel;
        const Live live(w, first, count);
        const int64_t apart = w.stride * w.pixel;
        if (live.begin == 0 && live.end == kBlock) {
          add_tap<0, kBlock>(sums, pixel, apart, tap, w.weight_channel, c);
        } else if (live.begin == 1 && live.end == kBlock) {
          add_tap<1, kBlock>(sums, pixel, apart, tap, w.weight_channel, c);
        } else if (live.begin == 0 && live.end == kBlock - 1) {
          add_tap<0, kBlock - 1>(sums, pixel, apart, tap, w.weight_channel, c);
        } else {  // more of them read padding
#pragma GCC unroll 14
          for (int o = 0; o < kBlock; ++o) {
            if (o < live.begin || o >= live.end) continue;
            Pixel x;
            x.load_from(pixel + o * w.stride * w.pixel, c);
            each<Pixel::steps>([&](auto i) __attribute__((always_inline)) {
              sums[o] = x.template add_to<i>(sums[o], Pixel::weight(tap + i * w.weight_channel));
            });
          }
        }
      }
    each<kBlock / 7>([&](auto half) __attribute__((always_inline)) {
      [&]<int... i>(std::integer_sequence<int, i...>) __attribute__((always_inline)) {
        put(7 * half, sums[7 * half + i]...);
      }
      (std::make_integer_sequence<int, 7>{});
    });
  }

  static void add_gradient(const DepthwiseWindow& w, const T* dy, int64_t dy_pixel,
                           float* gradient) {
    for (int64_t begin = 0; begin < w.channels; begin += lanes) {
      const int64_t c = at_most(begin, w.channels - lanes);
      for (int64_t r = 0; r < w.rows; ++r)
        for (int64_t t = 0; t < w.taps; ++t) {
          const int64_t first = w.offset + t * w.offset_step;
          const T* row = static_cast<const T*>(w.source) + r * w.source_row + first * w.pixel;
          V sums[kGradients][group];
          each<kGradients * group>([&](int i) __attribute__((always_inline)) {
            sums[i / group][i % group] = V(0);
          });
          // Of Pixels::count outputs, or the last one alone.
          const auto add_products = [&](int64_t output, bool all, V(&to)[group])
              __attribute__((always_inline)) {
            static constexpr T kNone[static_cast<size_t>(lanes)]{};
            const T *x = row + output * w.stride * w.pixel + c, *d = dy + output * dy_pixel + c;
            Pixels pixels;
            pixels.load_from(x, all ? x + w.stride * w.pixel : kNone, d, all ? d + dy_pixel : kNone,
                             c);
            each<group>([&](auto i) __attribute__((always_inline)) {
              to[i] = pixels.template add_to<i>(to[i]);
            });
          };
          const Live live(w, first, w.outputs);
          int64_t output = live.begin;
          constexpr int n = Pixels::count;
          for (; output + n * kGradients <= live.end; output += n * kGradients)
            each<kGradients>([&](int k) __attribute__((always_inline)) {
              add_products(output + n * k, true, sums[k]);
            });
          for (; output + n <= live.end; output += n) add_products(output, true, sums[0]);
          if constexpr (n > 1)
            if (output < live.end) add_products(output, false, sums[0]);
          float* to = gradient + r * w.weight_row + t * w.weight_tap + c;
          each<group>([&](int i) __attribute__((always_inline)) {
            V sum = sums[0][i];
            each<kGradients - 1>([&](int k)
                                     __attribute__((always_inline)) { sum += sums[k + 1][i]; });
            add_lanes(to + i * w.weight_channel, sum, begin - c);
          });
        }
    }
  }
};

/// The most channels of a group that loops are for: on shorter vectors, products of matrices, two
/// vectors wide, take less time.
template <class T>
inline constexpr int64_t kWidestGroup = kLanes<T> == 16 && (sizeof(T) == 4 || kMultipliesPairs<T>)
                                            ? 16
                                            : 8;

/// f(the loops of groups of so many channels).
template <class T, class F>
void of_group(int64_t group, F f) {
  switch (group) {
    case 2: return f(GroupedLoops<T, 2>{});
    case 4: return f(GroupedLoops<T, 4>{});
    case 8: return f(GroupedLoops<T, 8>{});
  }
  if constexpr (kWidestGroup<T> == 16) f(GroupedLoops<T, 16>{});
}

}  // namespace
}  // namespace quern::kernels
