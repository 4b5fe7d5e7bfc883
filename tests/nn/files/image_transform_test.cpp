#include "quern/nn/image_transform.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <set>

#include "quern/nn/safetensors.h"
#include "quern/tensor/raw.h"

using namespace quern;

namespace {

const TensorDict& goldens() {
  static const TensorDict dict = load_safetensors(QUERN_GOLDENS "/images.safetensors");
  return dict;
}

ImageBox box_of(const Tensor& t) {
  const auto v = t.to_vector<int64_t>();
  return {v[0], v[1], v[2], v[3]};
}

Tensor part(const Tensor& image, const ImageBox& box) {
  return raw::slice(raw::slice(image, 0, box.top, box.top + box.height), 1, box.left,
                    box.left + box.width);
}

bool same(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && a.to_vector<uint8_t>() == b.to_vector<uint8_t>();
}

/// The bytes of a golden's file, for a decoder.
struct File {
  explicit File(const std::string& name)
      : tensor(goldens().at(name + ".file")),
        decoder({reinterpret_cast<const char*>(tensor.data<uint8_t>()),
                 static_cast<size_t>(tensor.numel())},
                name) {}
  Tensor tensor;
  ImageDecoder decoder;
};

}  // namespace

TEST_CASE("resized pictures have Pillow's bits") {
  const Tensor& in = goldens().at("resize.in");
  for (int i = 0; i < 9; ++i) {
    CAPTURE(i);
    const std::string name = "resize." + std::to_string(i);
    const auto size = goldens().at(name + ".size").to_vector<int64_t>();
    const Tensor image = part(in, box_of(goldens().at(name + ".box")));
    CHECK(same(resize_image(image, size[0], size[1]), goldens().at(name + ".rgb")));
  }
  CHECK_THROWS_WITH_AS(resize_image(in, 0, 3), doctest::Contains("size: expected at least 1×1"),
                       Error);
  CHECK_THROWS_WITH_AS(resize_image(ones({3, 4, 5}), 2, 2),
                       doctest::Contains("image: expected u8 [H,W,3]"), Error);
}

TEST_CASE("a view shows what cropping, resizing, cropping and mirroring the whole picture do") {
  for (const char* name : {"jpeg_420", "jpeg_exif_6", "png_rgb_8"}) {
    const File file(name);
    CAPTURE(name);
    const ImageDecoder& picture = file.decoder;
    RandomStream random(3, 5);
    for (int i = 0; i < 100; ++i) {
      ImageView view;
      view.crop.height = 1 + random.below(picture.height()),
      view.crop.width = 1 + random.below(picture.width());
      view.crop.top = random.below(picture.height() - view.crop.height + 1);
      view.crop.left = random.below(picture.width() - view.crop.width + 1);
      view.height = 10 + random.below(30), view.width = 10 + random.below(30);
      view.window.height = 1 + random.below(view.height),
      view.window.width = 1 + random.below(view.width);
      view.window.top = random.below(view.height - view.window.height + 1);
      view.window.left = random.below(view.width - view.window.width + 1);
      const Tensor resized = part(
          resize_image(part(picture.decode(), view.crop), view.height, view.width), view.window);
      REQUIRE(same(decode_view(picture, view), resized));
      view.flip = true;
      const Tensor mirrored = decode_view(picture, view);
      for (int64_t x = 0; x < view.window.width; ++x)
        REQUIRE(
            same(raw::select(mirrored, 1, x), raw::select(resized, 1, view.window.width - 1 - x)));
    }
  }
}

TEST_CASE("the middle of a resized picture is torchvision's") {
  // 500×375: Resize(256) makes 341×256 of it,
  // CenterCrop(224) starts at round(58.5), to even, and 16.
  const ImageView view = resized_center(375, 500, 256, 224);
  CHECK(view.height == 256);
  CHECK(view.width == 341);
  CHECK(view.window.top == 16);
  CHECK(view.window.left == 58);
  CHECK(view.window.height == 224);
  CHECK(resized_center(1, int64_t{1} << 28, 8, 8).width == int64_t{1} << 31);
  CHECK_THROWS_WITH_AS(resized_center(9, 9, 223, 224), doctest::Contains("resize: expected"),
                       Error);
}

TEST_CASE("random crops keep to their scale and ratio, spread over the picture and mirror half") {
  RandomStream random(1, 2);
  double smallest = 1, largest = 0, thinnest = 9, widest = 0, left = 0;
  int mirrored = 0;
  const int n = 4000;
  for (int i = 0; i < n; ++i) {
    const ImageView view = random_resized_crop(375, 500, 224, random);
    const auto height = static_cast<double>(view.crop.height),
               width = static_cast<double>(view.crop.width);
    smallest = std::min(smallest, height * width / (375 * 500)),
    largest = std::max(largest, height * width / (375 * 500));
    thinnest = std::min(thinnest, width / height), widest = std::max(widest, width / height);
    left += static_cast<double>(view.crop.left) / std::max(1.0, 500 - width) / n;
    mirrored += view.flip;
    REQUIRE(view.crop.top >= 0);
    REQUIRE(view.crop.top + view.crop.height <= 375);
    REQUIRE(view.crop.left + view.crop.width <= 500);
  }
  CHECK(smallest > 0.078), CHECK(smallest < 0.09), CHECK(largest > 0.97), CHECK(largest <= 1);
  CHECK(thinnest > 0.74), CHECK(thinnest < 0.76), CHECK(widest < 1.345), CHECK(widest > 1.32);
  CHECK(left == doctest::Approx(0.5).epsilon(0.05));  // 9 of its standard deviations
  CHECK(std::abs(mirrored - n / 2) < 200);            // 6

  // No crop of a thin picture has a ratio of 3/4 or more: the middle.
  const ImageView tall = random_resized_crop(1000, 10, 8, random);
  CHECK(tall.crop.width == 10), CHECK(tall.crop.height == 13), CHECK(tall.crop.top == 493);
  const ImageView wide = random_resized_crop(10, 1000, 8, random);
  CHECK(wide.crop.height == 10), CHECK(wide.crop.width == 13), CHECK(wide.crop.left == 493);
  const ImageView dot = random_resized_crop(1, 1, 8, random);
  CHECK(dot.crop.height == 1), CHECK(dot.crop.width == 1);
}

TEST_CASE("normalised pictures: torchvision's arithmetic, into any strides") {
  Tensor image = empty({2, 3, 3}, DType::u8);
  for (int64_t i = 0; i < 18; ++i) image.out<uint8_t>()[i] = static_cast<uint8_t>(i * 15);
  const Tensor batch = full({2, 3, 2, 3}, 7.0),
               last = raw::contiguous(batch, MemoryFormat::channels_last);
  normalize_image(raw::select(batch, 0, 1), image);
  normalize_image(raw::select(last, 0, 1), image);
  const ImageNorm norm;
  for (int64_t c = 0; c < 3; ++c)
    for (int64_t y = 0; y < 2; ++y)
      for (int64_t x = 0; x < 3; ++x) {
        const auto value = static_cast<float>(image.data<uint8_t>()[(y * 3 + x) * 3 + c]);
        const float expected = (value / 255.0f - norm.mean[c]) / norm.std[c];
        const auto at = [&](const Tensor& t) {
          return t.data<float>()[t.stride(0) + c * t.stride(1) + y * t.stride(2) + x * t.stride(3)];
        };
        CHECK(at(batch) == expected);
        CHECK(at(last) == expected);
      }
  CHECK(batch.to_vector<float>()[17] == 7);
  CHECK_THROWS_WITH_AS(normalize_image(batch, image),
                       doctest::Contains("out: expected f32 [3,2,3]"), Error);
}

TEST_CASE("numbers of a stream, one at a time") {
  RandomStream random(5, 9), again(5, 9), other(5, 10);
  const auto block = philox4x32({0, 0, 9, 0}, {5, 0}), next = philox4x32({1, 0, 9, 0}, {5, 0});
  for (int i = 0; i < 4; ++i) CHECK(random.word() == block[i]);
  CHECK(random.word() == next[0]);
  CHECK(other.word() != again.word());
  std::set<int64_t> values;
  for (int i = 0; i < 200; ++i) values.insert(random.below(7));
  CHECK(values == std::set<int64_t>{0, 1, 2, 3, 4, 5, 6});
  for (int i = 0; i < 100; ++i) {
    const double x = random.uniform(-2, 3);
    CHECK((x >= -2 && x < 3));
  }
  CHECK(random.uniform(4, 4) == 4);
}
