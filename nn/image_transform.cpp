#include "quern/nn/image_transform.h"

#include <algorithm>
#include <cmath>

#include "quern/nn/image_resize.h"
#include "quern/tensor/raw.h"

namespace quern {
namespace {

constexpr int64_t kMaxSide = int64_t{1} << 36;  // times a side of a picture: no overflow
constexpr int64_t kKeptSize = 3;  // times as large as shown: what a decoder makes smaller may be

void check_image(std::string_view op, const Tensor& image) {
  check(image.dtype() == DType::u8 && image.dim() == 3 && image.size(2) == 3 && image.numel() > 0,
        op, "image: expected u8 [H,W,3], not empty, got {}", image.describe());
}

bool lies_in(const ImageBox& box, int64_t height, int64_t width) {
  return box.height > 0 && box.width > 0 && box.top >= 0 && box.left >= 0 &&
         box.height <= height - box.top && box.width <= width - box.left;
}

/// Python's round(): to even.
int64_t round_half_even(double x) { return static_cast<int64_t>(std::nearbyint(x)); }

/// By how much a decoder may make the crop smaller.
int64_t reduction_for(const ImageDecoder& picture, const ImageView& view) {
  int64_t reduction = picture.max_reduction();
  const auto leaves_enough = [&] {
    return view.crop.height / reduction >= kKeptSize * view.height &&
           view.crop.width / reduction >= kKeptSize * view.width;
  };
  while (reduction > 1 && !leaves_enough()) reduction /= 2;
  return reduction;
}

}  // namespace

Tensor resize_image(const Tensor& image, int64_t height, int64_t width) {
  check_image("resize_image", image);
  check(height > 0 && width > 0, "resize_image", "size: expected at least 1×1, got {}×{}", height,
        width);
  const Tensor in = raw::contiguous(image), out = empty({height, width, 3}, DType::u8);
  const auto axis = [](int64_t from, int64_t to) {
    return image::make_axis(from, 0, static_cast<double>(from), to, 0, to);
  };
  image::resize(in.data<uint8_t>(), in.size(1), axis(in.size(0), height), axis(in.size(1), width),
                false, out.out<uint8_t>());
  return out;
}

ImageView resized_center(int64_t height, int64_t width, int64_t resize, int64_t size) {
  check(size > 0 && resize >= size, "resized_center",
        "resize: expected at least the {} pixels of the crop, got {}", size, resize);
  const int64_t shorter = std::min(height, width);
  const auto scaled = [&](int64_t side) { return resize * side / shorter; };
  ImageView view{{0, 0, height, width}, scaled(height), scaled(width), {0, 0, size, size}};
  view.window.top = round_half_even(static_cast<double>(view.height - size) / 2);
  view.window.left = round_half_even(static_cast<double>(view.width - size) / 2);
  return view;
}

ImageView random_resized_crop(int64_t height, int64_t width, int64_t size, RandomStream& random,
                              const RandomResizedCropOptions& options) {
  const auto h = static_cast<double>(height), w = static_cast<double>(width);
  ImageBox crop;
  for (int tries = 0; tries < 10 && crop.width == 0; ++tries) {
    const double area = h * w * random.uniform(options.min_scale, options.max_scale);
    const double ratio =
        std::exp(random.uniform(std::log(options.min_ratio), std::log(options.max_ratio)));
    const int64_t rows = round_half_even(std::sqrt(area / ratio));
    const int64_t columns = round_half_even(std::sqrt(area * ratio));
    if (rows <= 0 || columns <= 0 || rows > height || columns > width) continue;
    crop = {random.below(height - rows + 1), random.below(width - columns + 1), rows, columns};
  }
  if (crop.width == 0) {
    const double ratio = std::clamp(w / h, options.min_ratio, options.max_ratio);
    crop.height = std::clamp<int64_t>(round_half_even(w / ratio), 1, height);
    crop.width = std::clamp<int64_t>(round_half_even(h * ratio), 1, width);
    crop.top = (height - crop.height) / 2, crop.left = (width - crop.width) / 2;
  }
  return {crop, size, size, {0, 0, size, size}, random.uniform(0, 1) < options.flip};
}

Tensor decode_view(const ImageDecoder& picture, const ImageView& view) {
  const auto& [crop, height, width, window, flip] = view;
  check(lies_in(crop, picture.height(), picture.width()), "decode_view",
        "crop: expected a part of {}×{} pixels, got {}×{} at {}, {}", picture.height(),
        picture.width(), crop.height, crop.width, crop.top, crop.left);
  check(height <= kMaxSide && width <= kMaxSide && lies_in(window, height, width), "decode_view",
        "window: expected a part of {}×{} pixels, got {}×{} at {}, {}", height, width,
        window.height, window.width, window.top, window.left);

  const int64_t reduction = reduction_for(picture, view);
  // The crop's place in what is decoded: it ends at the crop, or else beyond it.
  const auto axis = [&](int64_t from, int64_t length, int64_t side, int64_t to, int64_t first,
                        int64_t count) {
    if (reduction == 1) {
      image::Axis whole =
          image::make_axis(length, 0, static_cast<double>(length), to, first, count);
      for (int64_t& begin : whole.begin) begin += from;
      return whole;
    }
    const auto r = static_cast<double>(reduction);
    return image::make_axis((side + reduction - 1) / reduction, static_cast<double>(from) / r,
                            static_cast<double>(length) / r, to, first, count);
  };
  const image::Axis rows =
      axis(crop.top, crop.height, picture.height(), height, window.top, window.height);
  const image::Axis columns =
      axis(crop.left, crop.width, picture.width(), width, window.left, window.width);
  const Tensor pixels = picture.decode(
      {rows.first(), columns.first(), rows.last() - rows.first(), columns.last() - columns.first()},
      reduction);
  const Tensor out = empty({window.height, window.width, 3}, DType::u8);
  image::resize(pixels.data<uint8_t>(), pixels.size(1), rows, columns, flip, out.out<uint8_t>());
  return out;
}

void normalize_image(const Tensor& out, const Tensor& image, const ImageNorm& norm) {
  check_image("normalize_image", image);
  const int64_t height = image.size(0), width = image.size(1);
  check(out.dtype() == DType::f32 && out.shape() == Shape{3, height, width}, "normalize_image",
        "out: expected f32 [3,{},{}], got {}", height, width, out.describe());
  float values[3][256];
  for (int c = 0; c < 3; ++c)
    for (int i = 0; i < 256; ++i)
      values[c][i] = (static_cast<float>(i) / 255.0f - norm.mean[c]) / norm.std[c];

  const Tensor dense = raw::contiguous(image);
  const auto* in = dense.data<uint8_t>();
  raw::check_writable("normalize_image", out, "out");
  const InPlaceChange change(out.storage());
  float* const to = out.out<float>();
  const Strides& strides = out.strides();
  for (int64_t y = 0; y < height; ++y, in += 3 * width) {
    float* row = to + y * strides[1];
    for (int64_t x = 0; x < width; ++x, row += strides[2])
      for (int64_t c = 0; c < 3; ++c) row[c * strides[0]] = values[c][in[3 * x + c]];
  }
}

}  // namespace quern
