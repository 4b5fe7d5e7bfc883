#include "quern/nn/image_augment.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdio>

#include "quern/nn/safetensors.h"
#include "quern/tensor/raw.h"

using namespace quern;

TEST_CASE("erased rectangles keep to their size, place and probability") {
  RandomStream random(1, 1);
  int erased = 0;
  double area = 0;
  const int n = 2000;
  for (int i = 0; i < n; ++i) {
    const Tensor image = full({3, 20, 30}, 1.0);
    random_erase_(image, 0.25, random);
    const auto values = image.to_vector<float>();
    int64_t zeros = 0, top = 20, bottom = -1, left = 30, right = -1;
    for (int64_t y = 0; y < 20; ++y)
      for (int64_t x = 0; x < 30; ++x) {
        const float v = values[y * 30 + x];
        REQUIRE(v == values[600 + y * 30 + x]);
        if (v != 0) continue;
        ++zeros, top = std::min(top, y), bottom = std::max(bottom, y), left = std::min(left, x),
                 right = std::max(right, x);
      }
    if (zeros == 0) continue;
    ++erased, area += static_cast<double>(zeros) / 600;
    REQUIRE(zeros == (bottom - top + 1) * (right - left + 1));  // a rectangle
    REQUIRE(zeros < 0.33 * 600 + 25);                           // sides are rounded
  }
  CHECK(std::abs(erased - n / 4) < 6 * std::sqrt(n * 0.25 * 0.75));
  CHECK(area / erased == doctest::Approx(0.175).epsilon(0.1));
  CHECK_THROWS_WITH_AS(random_erase_(ones({4, 5}), 1, random), doctest::Contains("[3,H,W]"), Error);
}

TEST_CASE("shares of mixed pictures have the mean and variance of Beta") {
  for (const double alpha : {0.2, 1.0, 3.0}) {
    CAPTURE(alpha);
    RandomStream random(2, 3);
    const int n = 20000;
    double mean = 0, square = 0;
    for (int i = 0; i < n; ++i) {
      const double share = random_mixup(alpha, random).share;
      REQUIRE((share >= 0 && share <= 1));
      mean += share / n, square += share * share / n;
    }
    const double variance = 1 / (4 * (2 * alpha + 1));
    CHECK(std::abs(mean - 0.5) < 5 * std::sqrt(variance / n));
    CHECK(square - mean * mean == doctest::Approx(variance).epsilon(0.05));
  }
  RandomStream random(2, 3);
  CHECK_THROWS_AS(random_mixup(0, random), Error);
}

TEST_CASE("mixed pictures: sums, or a rectangle of the one before") {
  Tensor images = empty({3, 3, 4, 5});
  for (int64_t i = 0; i < images.numel(); ++i) images.out<float>()[i] = static_cast<float>(i);
  const auto in = images.to_vector<float>();
  for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
    const Tensor source = raw::contiguous(images, format);
    const Tensor sum = mix_images(source, {.share = 0.75});
    CHECK(sum.is_dense_as(format));
    RandomStream random(4, 4);
    for (int round = 0; round < 50; ++round) {
      const ImageMix mix = random_cutmix(1, 4, 5, random);
      CHECK(mix.share == doctest::Approx(1 - static_cast<double>(mix.height * mix.width) / 20));
      const auto cut = mix_images(source, mix).to_vector<float>(), mean = sum.to_vector<float>();
      for (int64_t i = 0; i < 180; ++i) {
        const int64_t y = i / 5 % 4, x = i % 5;
        const float other = in[(i + 120) % 180];
        const bool inside =
            y >= mix.top && y < mix.top + mix.height && x >= mix.left && x < mix.left + mix.width;
        REQUIRE(cut[i] == (inside ? other : in[i]));
        REQUIRE(mean[i] == in[i] * 0.75f + other * 0.25f);
      }
    }
  }
}

TEST_CASE("augmented pictures have Pillow's bits") {
  const TensorDict goldens = load_safetensors(QUERN_GOLDENS "/images.safetensors");
  const Tensor& in = goldens.at("augment.in");
  int seen = 0;
  for (const auto& [name, expected] : goldens) {
    int op = 0, magnitude = 0;
    if (std::sscanf(name.c_str(), "augment.%d.%d", &op, &magnitude) != 2) continue;
    CAPTURE(name);
    const Tensor got = augment_image(in, static_cast<ImageOp>(op), magnitude / 100.0);
    CHECK(got.to_vector<uint8_t>() == expected.to_vector<uint8_t>());
    ++seen;
  }
  CHECK(seen == 27);
  CHECK_THROWS_AS(augment_image(in, ImageOp::posterize, 9), Error);
  CHECK_THROWS_AS(augment_image(in, ImageOp::rotate, NAN), Error);
  CHECK_THROWS_WITH_AS(augment_image(ones({2, 2}), ImageOp::equalize, 0),
                       doctest::Contains("u8 [H,W,3]"), Error);
}

TEST_CASE("trivial augmentation changes pictures of any size, and draws the same again") {
  RandomStream random(8, 8), again(8, 8);
  int changed = 0;
  for (int i = 0; i < 400; ++i) {
    Tensor image = empty({1 + i % 9, 1 + i % 7, 3}, DType::u8);
    for (int64_t j = 0; j < image.numel(); ++j)
      image.out<uint8_t>()[j] = static_cast<uint8_t>(j * 37 + i);
    const Tensor result = trivial_augment_wide(image, random);
    REQUIRE(result.shape() == image.shape());
    REQUIRE(result.to_vector<uint8_t>() == trivial_augment_wide(image, again).to_vector<uint8_t>());
    changed += result.to_vector<uint8_t>() != image.to_vector<uint8_t>();
  }
  CHECK(changed > 200);
}
