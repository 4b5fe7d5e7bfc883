// The vector loops under the convolution's packing, on every instruction set, against plain ones.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "quern/ops/kernels/conv/blocks.h"
#include "quern/ops/kernels/pack/matrix.h"
#include "quern/ops/kernels/pack/panels.h"
#include "quern/ops/kernels/table.h"
#include "quern/tensor/dtype.h"

using namespace quern;
using namespace quern::kernels;

namespace {

std::vector<const CopyKernel*> runnable() {
  std::vector<const CopyKernel*> kernels;
  for (const CopyKernel* kernel : table<CopyKernel>())
    if (cpu_has(kernel->isa)) kernels.push_back(kernel);
  return kernels;
}

/// Sizes from nothing to over two squares; src rows with gaps, dst rows with gaps, which must stay
/// as they were, and without; what is behind dst, too.
template <class T>
void check_transpose(Transpose* transpose, int64_t gap) {
  for (int64_t rows : {0, 1, 3, 4, 5, 7, 8, 13, 16, 17, 31, 35}) {
    for (int64_t cols : {0, 1, 2, 4, 7, 9, 15, 16, 20, 33}) {
      const int64_t src_stride = rows + 3, dst_stride = cols + gap;
      std::vector<T> src(static_cast<size_t>(cols * src_stride)),
          dst(static_cast<size_t>(rows * dst_stride + 40), T{7});
      std::iota(src.begin(), src.end(), T{100});
      std::vector<T> expected = dst;
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < cols; ++j)
          expected[static_cast<size_t>(i * dst_stride + j)] =
              src[static_cast<size_t>(j * src_stride + i)];
      transpose(src.data(), src_stride, dst.data(), dst_stride, rows, cols);
      CAPTURE(rows);
      CAPTURE(cols);
      CHECK(dst == expected);
    }
  }
}

}  // namespace

TEST_CASE("Copy kernels transpose") {
  for (const CopyKernel* kernel : runnable()) {
    CAPTURE(std::string(kernel->name));
    for (int64_t gap : {0, 2}) {
      CAPTURE(gap);
      check_transpose<uint16_t>(kernel->transpose16, gap);
      check_transpose<uint32_t>(kernel->transpose32, gap);
      check_transpose<uint64_t>(kernel->transpose64, gap);
    }
  }
}

TEST_CASE("Copy kernels interleave") {
  for (const CopyKernel* kernel : runnable()) {
    for (int64_t n : {0, 1, 7, 8, 9, 31, 32, 33, 70}) {
      std::vector<uint16_t> a(static_cast<size_t>(n)), b(a), got(2 * a.size() + 1, 9),
          expected(got);
      std::iota(a.begin(), a.end(), uint16_t{1});
      std::iota(b.begin(), b.end(), uint16_t{1001});
      for (size_t i = 0; i < a.size(); ++i) expected[2 * i] = a[i], expected[2 * i + 1] = b[i];
      kernel->interleave16(a.data(), b.data(), n, got.data());
      CHECK(got == expected);
    }
  }
}

namespace {

void round(const CopyKernel& kernel, const float* src, int64_t n, bfloat16* dst, int terms = 1,
           int64_t term_stride = 0) {
  kernel.round({{
                    .src = src,
                    .src_stride = n,
                    .dst = dst,
                    .dst_stride = n,
                    .rows = 1,
                    .cols = n,
                },
                terms,
                term_stride});
}

/// x ≈ hi + lo, as bfloat16 rounds them.
bfloat16 term_of(float x, int term) {
  const bfloat16 high(x);
  return term == 0 ? high : bfloat16(x - static_cast<float>(high));
}

}  // namespace

TEST_CASE("Copy kernels round as bfloat16 does") {
  std::vector<float> values{0.0f,
                            -0.0f,
                            1.0f,
                            1.00390625f,
                            1.01171875f,
                            -1.00390626f,
                            3.4e38f,
                            std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity(),
                            std::nanf(""),
                            std::bit_cast<float>(0x7f800001u)};
  for (int i = 0; i < 40; ++i) values.push_back(std::sin(static_cast<float>(i)) * 1000);
  for (const CopyKernel* kernel : runnable()) {
    for (size_t n : {size_t{1}, size_t{15}, values.size()}) {
      std::vector<bfloat16> got(values.size(), bfloat16(5.0f));
      round(*kernel, values.data(), static_cast<int64_t>(n), got.data());
      for (size_t i = 0; i < values.size(); ++i)
        CHECK_EQ(got[i].bits, (i < n ? bfloat16(values[i]) : bfloat16(5.0f)).bits);
    }
  }
}

TEST_CASE("Copy kernels split f32 into two terms of bf16") {
  std::vector<float> values;
  for (int i = 0; i < 70; ++i) values.push_back(std::sin(static_cast<float>(i)) * 1000);
  for (const CopyKernel* kernel : runnable()) {
    for (size_t n : {size_t{1}, size_t{15}, size_t{16}, values.size()}) {
      std::vector<bfloat16> got(2 * values.size(), bfloat16(5.0f));
      round(*kernel, values.data(), static_cast<int64_t>(n), got.data(), 2, std::ssize(values));
      for (size_t i = 0; i < got.size(); ++i) {
        const size_t at = i % values.size();
        const int term = i < values.size() ? 0 : 1;
        CHECK_EQ(got[i].bits, (at < n ? term_of(values[at], term) : bfloat16(5.0f)).bits);
      }
    }
  }
}

namespace {

// The data of these tests are small integers and halves of them: exact in every dtype.
double center_of(int64_t channel) { return static_cast<double>(channel % 9 - 4); }
double scale_of(int64_t channel) { return 0.5 * static_cast<double>(channel % 7 - 3); }
double shift_of(int64_t channel) { return static_cast<double>(channel % 5 - 2); }
/// max(0, (v - center)·scale + shift) in f64.
double mapped(double v, int64_t channel) {
  const double z = (v - center_of(channel)) * scale_of(channel) + shift_of(channel);
  return z < 0 ? 0 : z;
}

template <class T>
auto map_of(const CopyKernel& kernel) {
  if constexpr (std::is_same_v<T, bfloat16>) return kernel.map_bf16;
  else if constexpr (std::is_same_v<T, float>) return kernel.map_f32;
  else return kernel.map_f64;
}

template <class T>
struct Map {
  std::vector<Accumulator<T>> center, scale, shift;
  explicit Map(int64_t channels) {
    for (int64_t c = 0; c < channels; ++c) {
      center.push_back(static_cast<Accumulator<T>>(center_of(c)));
      scale.push_back(static_cast<Accumulator<T>>(scale_of(c)));
      shift.push_back(static_cast<Accumulator<T>>(shift_of(c)));
    }
  }
  operator ChannelMap() const {
    return {.center = center.data(), .scale = scale.data(), .shift = shift.data()};
  }
};

/// Channels in columns and in rows, to another place and in place; what is beyond must stay.
template <class T>
void check_map(const CopyKernel& kernel, int64_t rows, int64_t cols, bool rows_are_channels,
               bool in_place) {
  CAPTURE(std::string(kernel.name));
  CAPTURE(rows);
  CAPTURE(cols);
  const int64_t src_stride = cols + 1, dst_stride = in_place ? src_stride : cols + 3;
  std::vector<T> src, dst(static_cast<size_t>(rows * dst_stride), T(77.0f));
  for (int64_t i = 0; i < rows * src_stride; ++i) src.push_back(T(static_cast<float>(i % 11 - 5)));
  if (in_place) dst = src;
  std::vector<T> expected = dst;
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < cols; ++j) {
      const int64_t channel = rows_are_channels ? i : j;
      const double v = static_cast<double>(src[static_cast<size_t>(i * src_stride + j)]);
      expected[static_cast<size_t>(i * dst_stride + j)] = static_cast<T>(mapped(v, channel));
    }
  const Map<T> map(rows_are_channels ? rows : cols);
  map_of<T>(kernel)({.src = in_place ? dst.data() : src.data(),
                     .src_stride = src_stride,
                     .dst = dst.data(),
                     .dst_stride = dst_stride,
                     .rows = rows,
                     .cols = cols,
                     .map = map,
                     .rows_are_channels = rows_are_channels});
  for (size_t i = 0; i < dst.size(); ++i)
    CHECK_EQ(static_cast<double>(dst[i]), static_cast<double>(expected[i]));
}

/// A strided 3×3 convolution's scratch, padding and all, in either order.
/// f32 that becomes bf16 does so in two terms.
template <class T, class To = T>
constexpr int kTerms = std::is_same_v<T, To> ? 1 : 2;

/// A number that takes kTerms; exact in f32 when it is mapped.
template <class T, class To>
T number(int64_t i) {
  const float low = kTerms<T, To> == 1 ? 0 : static_cast<float>(i % 7) / 512;
  return T(static_cast<float>(i % 61 - 30) + low);
}

/// What became of a number is its term.
template <class T, class To>
bool is_term(To got, double expected, int term) {
  if constexpr (kTerms<T, To> == 1) return static_cast<double>(got) == expected;
  else return got.bits == term_of(static_cast<float>(expected), term).bits;
}

template <class T, class To = T>
void check_mapped_block(MemoryFormat format, bool channels_inside) {
  const int64_t channels = 19, height = 5, width = 7;
  const ImageStrides strides(format, channels, height, width);
  const Axis y = forward_axis(height, 3, 3, 2, 1, 1), x = forward_axis(width, 4, 3, 2, 1, 1);
  const Block block{.image = 1, .images = 1, .row = 0, .rows = 3};
  std::vector<T> src;
  for (int64_t i = 0; i < 2 * strides.n; ++i) src.push_back(number<T, To>(i));
  const Scratch layout(y, x, block.rows);
  const int64_t first = 3, some = 14;  // channels
  const Map<T> map(some);
  const SourceCopy copy{.item = sizeof(T),
                        .strides = strides,
                        .channels = some,
                        .position_stride = channels_inside ? some + 2 : 1,
                        .channel_stride = channels_inside ? 1 : layout.image() + 3,
                        .map = map,
                        .bf16_terms = kTerms<T, To> == 1 ? 0 : kTerms<T, To>,
                        .term_stride = (layout.image() + 3) * (some + 2)};
  std::vector<To> got(static_cast<size_t>((layout.image() + 3) * (some + 2) * kTerms<T, To>),
                      To(77.0f));
  copy_block(copy, y, x, block, src.data() + first * strides.c, got.data());
  for (int64_t c = 0; c < some; ++c)
    for (int64_t plane = 0; plane < layout.planes_y * layout.planes_x; ++plane)
      for (int64_t i = 0; i < layout.height; ++i)
        for (int64_t j = 0; j < layout.width; ++j) {
          const int64_t iy = y.source_at(plane / layout.planes_x, 0, i);
          const int64_t ix = x.source_at(plane % layout.planes_x, 0, j);
          double expected = 0;  // padding
          if (iy >= 0 && iy < height && ix >= 0 && ix < width) {
            const int64_t at =
                strides.n + (first + c) * strides.c + iy * strides.y + ix * strides.x;
            expected = mapped(static_cast<double>(src[static_cast<size_t>(at)]), c);
          }
          const int64_t position = plane * layout.plane() + i * layout.width + j;
          const int64_t at = position * copy.position_stride + c * copy.channel_stride;
          for (int term = 0; term < kTerms<T, To>; ++term)
            CHECK(
                is_term<T>(got[static_cast<size_t>(at + term * copy.term_stride)], expected, term));
        }
}

template <class F>
void each_floating(F f) {
  f(bfloat16());
  f(float());
  f(double());
}

/// The matrix ends where its buffer does; panels have guards between them.
template <class T, class To = T>
void check_panels(void (*cut)(const PanelCopy&), int64_t group, int64_t rows, int64_t cols,
                  int64_t src_stride, int64_t width, int64_t pitch, bool map) {
  CAPTURE(rows);
  CAPTURE(cols);
  CAPTURE(src_stride);
  CAPTURE(width);
  CAPTURE(pitch);
  CAPTURE(map);
  const int64_t groups = (rows + group - 1) / group;
  const int64_t panel_stride = groups * group * pitch + 5, count = (cols + width - 1) / width;
  std::vector<T> src;
  std::vector<To> got(static_cast<size_t>(kTerms<T, To> * count * panel_stride), To(77.0f));
  for (int64_t i = 0; i < (rows - 1) * src_stride + cols; ++i) src.push_back(number<T, To>(i));
  const Map<T> channels(cols);
  cut({.src = src.data(),
       .src_stride = src_stride,
       .rows = rows,
       .cols = cols,
       .dst = got.data(),
       .panel_stride = panel_stride,
       .width = width,
       .pitch = pitch,
       .map = map ? ChannelMap(channels) : ChannelMap{},
       .terms = kTerms<T, To>,
       .term_stride = count * panel_stride});
  int64_t wrong = 0;
  for (int64_t all = 0; all < kTerms<T, To> * count; ++all) {
    const int64_t panel = all % count;
    for (int64_t at = 0; at < panel_stride; ++at) {
      const To item = got[static_cast<size_t>(all * panel_stride + at)];
      const int64_t i = at / (group * pitch) * group + at % group;
      const int64_t column = at / group % pitch, j = panel * width + column;
      if (at >= groups * group * pitch) wrong += item != To(77.0f);
      else if (column >= width || j >= cols) continue;  // undefined
      else if (i >= rows) wrong += item != To(0.0f);
      else {
        const double v = static_cast<double>(src[static_cast<size_t>(i * src_stride + j)]);
        const double expected = map ? mapped(v, j) : v;
        wrong += !is_term<T>(item, expected, static_cast<int>(all / count));
      }
    }
  }
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("Copy kernels cut matrices into panels, and map them") {
  struct Panels {
    int64_t width, pitch;
  };
  static constexpr Panels kPanels[] = {{14, 16}, {6, 16}, {16, 16}, {32, 32}, {9, 32}, {7, 16}};
  for (const CopyKernel* kernel : runnable()) {
    CAPTURE(std::string(kernel->name));
    for (int64_t rows : {1, 2, 5, 20, 21})
      for (int64_t cols : {1, 7, 8, 13, 14, 16, 31, 32, 33, 64, 77})
        for (const Panels& panels : kPanels)
          for (int64_t stride : {cols + 3, int64_t{0}, int64_t{1}, int64_t{5}})  // rows may overlap
            for (bool map : {false, true}) {
              check_panels<float>(kernel->panels32, 1, rows, cols, stride, panels.width,
                                  panels.pitch, map);
              check_panels<bfloat16>(kernel->pair_panels16, 2, rows, cols, stride, panels.width,
                                     panels.pitch, map);
              check_panels<float, bfloat16>(kernel->round_pair_panels, 2, rows, cols, stride,
                                            panels.width, panels.pitch, map);
            }
  }
}

TEST_CASE("Copy kernels map channels") {
  each_floating([]<class T>(T) {
    for (const CopyKernel* kernel : runnable())
      for (int64_t rows : {1, 3})
        for (int64_t cols : {1, 7, 8, 16, 31, 33, 70})
          for (bool rows_are_channels : {false, true})
            for (bool in_place : {false, true})
              check_map<T>(*kernel, rows, cols, rows_are_channels, in_place);
  });
}

TEST_CASE("Mapped, bf16 is rounded once and a NaN stays one") {
  // (v - center)·scale + shift is 1 + 2^-8 + 2^-20, above the tie of 1 and its neighbour; rounded
  // after the product it would be the tie, and go to even.
  const float scale = 1 + 0x1p-20f, shift = 0x1p-8f, one = 1;
  for (const CopyKernel* kernel : runnable()) {
    for (int64_t n : {1, 64}) {
      std::vector<bfloat16> v(static_cast<size_t>(n), bfloat16(one));
      v.back() = bfloat16(std::nanf(""));
      const std::vector<float> centers(v.size(), 0), scales(v.size(), scale),
          shifts(v.size(), shift);
      kernel->map_bf16({.src = v.data(),
                        .src_stride = n,
                        .dst = v.data(),
                        .dst_stride = n,
                        .rows = 1,
                        .cols = n,
                        .map = {centers.data(), scales.data(), shifts.data()},
                        .rows_are_channels = false});
      CHECK(std::isnan(static_cast<float>(v.back())));
      if (n > 1) CHECK_EQ(v[0].bits, bfloat16(1 + 0x1p-7f).bits);
    }
  }
}

TEST_CASE("A block is copied through a map of its channels, padding stays zero") {
  each_floating([]<class T>(T) {
    for (MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last})
      for (bool channels_inside : {false, true}) {
        check_mapped_block<T>(format, channels_inside);
        if constexpr (std::is_same_v<T, float>)
          check_mapped_block<float, bfloat16>(format, channels_inside);
      }
  });
}
