#include <algorithm>
#include <array>
#include <cmath>

#include "quern/nn/image_augment.h"
#include "quern/tensor/raw.h"

namespace quern {
namespace {

/// A picture's values in rows without gaps.
struct Pixels {
  int64_t height, width;
  const uint8_t* in;
  uint8_t* out;
  int64_t values() const { return height * width * 3; }
};

uint8_t grey(const uint8_t* rgb) {
  return static_cast<uint8_t>((rgb[0] * 19595 + rgb[1] * 38470 + rgb[2] * 7471 + 0x8000) >> 16);
}

/// Pixel (x, y) is that of the input at (m[0] x + m[1] y + m[2], m[3] x + m[4] y + m[5]), all
/// counted from pixels' middles: the nearest, in 16 bits below the point.
void transform(const Pixels& p, const std::array<double, 6>& m) {
  const auto fixed = [](double x) { return static_cast<int64_t>(std::floor(x * 65536 + 0.5)); };
  const int64_t x0 = fixed(m[2] + 0.5 * m[0] + 0.5 * m[1]),
                y0 = fixed(m[5] + 0.5 * m[3] + 0.5 * m[4]);
  for (int64_t y = 0; y < p.height; ++y)
    for (int64_t x = 0; x < p.width; ++x) {
      const int64_t from_x = (x0 + y * fixed(m[1]) + x * fixed(m[0])) >> 16;
      const int64_t from_y = (y0 + y * fixed(m[4]) + x * fixed(m[3])) >> 16;
      uint8_t* to = p.out + 3 * (y * p.width + x);
      const bool inside = from_x >= 0 && from_x < p.width && from_y >= 0 && from_y < p.height;
      if (inside) std::copy_n(p.in + 3 * (from_y * p.width + from_x), 3, to);
      else std::fill_n(to, 3, uint8_t{0});
    }
}

/// Pillow's Image.rotate: coefficients of 15 digits.
void rotate(const Pixels& p, double degrees) {
  const double angle = -degrees * 3.14159265358979323846 / 180;
  const auto digits = [](double x) { return std::nearbyint(x * 1e15) / 1e15; };
  const double c = digits(std::cos(angle)), s = digits(std::sin(angle));
  const double x = static_cast<double>(p.width) / 2, y = static_cast<double>(p.height) / 2;
  transform(p, {c, s, x - c * x - s * y, -s, c, y + s * x - c * y});
}

/// from + factor · (to - from), cut to 0..255.
uint8_t blend(uint8_t from, uint8_t to, float factor) {
  const float value = static_cast<float>(from) + factor * static_cast<float>(to - from);
  return static_cast<uint8_t>(std::clamp(value, 0.0f, 255.0f));
}

/// Away from base(i), i the value's place.
template <class Base>
void enhance(const Pixels& p, double magnitude, Base base) {
  const auto factor = static_cast<float>(1 + magnitude);
  for (int64_t i = 0; i < p.values(); ++i) p.out[i] = blend(base(i), p.in[i], factor);
}

uint8_t mean_grey(const Pixels& p) {
  int64_t sum = 0;
  const int64_t pixels = p.height * p.width;
  for (int64_t i = 0; i < pixels; ++i) sum += grey(p.in + 3 * i);
  return static_cast<uint8_t>(static_cast<double>(sum) / static_cast<double>(pixels) + 0.5);
}

/// Pillow's SMOOTH: 5 parts of 13 of a pixel and one of each neighbour; the rim as it is.
uint8_t smooth(const Pixels& p, int64_t i) {
  const int64_t row = 3 * p.width, y = i / row, x = i % row / 3;
  if (y == 0 || x == 0 || y == p.height - 1 || x == p.width - 1) return p.in[i];
  int sum = 4 * p.in[i];
  for (int64_t down = -1; down <= 1; ++down)
    for (int64_t right = -1; right <= 1; ++right) sum += p.in[i + down * row + 3 * right];
  return static_cast<uint8_t>((2 * sum + 13) / 26);
}

using Table = std::array<uint8_t, 256>;

/// Each channel's values by the table that make(histogram) gives.
template <class Make>
void by_histogram(const Pixels& p, Make make) {
  for (int64_t c = 0; c < 3; ++c) {
    std::array<int64_t, 256> histogram{};
    for (int64_t i = c; i < p.values(); i += 3) ++histogram[p.in[i]];
    const Table table = make(histogram);
    for (int64_t i = c; i < p.values(); i += 3) p.out[i] = table[p.in[i]];
  }
}

template <class F>
Table table_of(F f) {
  Table table{};
  for (int i = 0; i < 256; ++i)
    table[static_cast<size_t>(i)] = static_cast<uint8_t>(std::clamp<int64_t>(f(i), 0, 255));
  return table;
}

Table stretched(const std::array<int64_t, 256>& histogram) {
  int low = 0, high = 255;
  while (low < 255 && histogram[static_cast<size_t>(low)] == 0) ++low;
  while (high > 0 && histogram[static_cast<size_t>(high)] == 0) --high;
  if (high <= low) return table_of([](int i) { return i; });
  const double scale = 255.0 / (high - low), offset = -low * scale;
  return table_of([=](int i) { return static_cast<int64_t>(i * scale + offset); });
}

Table equalized(const std::array<int64_t, 256>& histogram) {
  int64_t sum = 0, last = 0;
  for (const int64_t count : histogram)
    if (count > 0) sum += last = count;
  const int64_t step = (sum - last) / 255;
  if (step == 0) return table_of([](int i) { return i; });
  int64_t n = step / 2;
  return table_of([&](int i) {
    const int64_t value = n / step;
    n += histogram[static_cast<size_t>(i)];
    return value;
  });
}

}  // namespace

Tensor augment_image(const Tensor& image, ImageOp op, double magnitude) {
  check(image.dtype() == DType::u8 && image.dim() == 3 && image.size(2) == 3 && image.numel() > 0,
        "augment_image", "image: expected u8 [H,W,3], not empty, got {}", image.describe());
  const bool fits = op != ImageOp::posterize || (magnitude >= 0 && magnitude <= 8);
  check(std::abs(magnitude) <= 1000 && fits, "augment_image",
        "magnitude: expected -1000..1000, of posterize 0..8, got {}", magnitude);
  const Tensor in = raw::clone(raw::contiguous(image)), out = empty(image.shape(), DType::u8);
  const Pixels p{image.size(0), image.size(1), in.data<uint8_t>(), out.out<uint8_t>()};
  const auto by_value = [&](const Table& table) {
    for (int64_t i = 0; i < p.values(); ++i) p.out[i] = table[p.in[i]];
  };
  switch (op) {
    case ImageOp::identity: return in;
    case ImageOp::shear_x: transform(p, {1, magnitude, 0, 0, 1, 0}); break;
    case ImageOp::shear_y: transform(p, {1, 0, 0, magnitude, 1, 0}); break;
    case ImageOp::translate_x: transform(p, {1, 0, -std::trunc(magnitude), 0, 1, 0}); break;
    case ImageOp::translate_y: transform(p, {1, 0, 0, 0, 1, -std::trunc(magnitude)}); break;
    case ImageOp::rotate: rotate(p, magnitude); break;
    case ImageOp::brightness: enhance(p, magnitude, [](int64_t) { return uint8_t{0}; }); break;
    case ImageOp::color:
      enhance(p, magnitude, [&](int64_t i) { return grey(p.in + i / 3 * 3); });
      break;
    case ImageOp::contrast:
      enhance(p, magnitude, [mean = mean_grey(p)](int64_t) { return mean; });
      break;
    case ImageOp::sharpness: enhance(p, magnitude, [&](int64_t i) { return smooth(p, i); }); break;
    case ImageOp::posterize:
      by_value(
          table_of([=](int i) { return i & ~((1 << (8 - static_cast<int>(magnitude))) - 1); }));
      break;
    case ImageOp::solarize:
      by_value(table_of([=](int i) { return i < magnitude ? i : 255 - i; }));
      break;
    case ImageOp::auto_contrast: by_histogram(p, stretched); break;
    case ImageOp::equalize: by_histogram(p, equalized); break;
  }
  return out;
}

Tensor trivial_augment_wide(const Tensor& image, RandomStream& random) {
  constexpr int64_t kStrengths = 31;
  const auto op = static_cast<ImageOp>(random.below(kImageOps));
  const auto strength = static_cast<double>(random.below(kStrengths)) / (kStrengths - 1);
  const double sign = random.below(2) == 0 ? 1 : -1;
  switch (op) {
    case ImageOp::shear_x:
    case ImageOp::shear_y:
    case ImageOp::brightness:
    case ImageOp::color:
    case ImageOp::contrast:
    case ImageOp::sharpness: return augment_image(image, op, sign * 0.99 * strength);
    case ImageOp::translate_x:
    case ImageOp::translate_y: return augment_image(image, op, sign * 32 * strength);
    case ImageOp::rotate: return augment_image(image, op, sign * 135 * strength);
    case ImageOp::posterize: return augment_image(image, op, 8 - std::nearbyint(6 * strength));
    case ImageOp::solarize: return augment_image(image, op, 255 * (1 - strength));
    default: return augment_image(image, op, 0);
  }
}

}  // namespace quern
