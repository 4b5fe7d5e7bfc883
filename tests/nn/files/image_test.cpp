#include "quern/nn/image.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <random>

#include "quern/nn/image_transform.h"
#include "quern/nn/safetensors.h"
#include "quern/tensor/raw.h"
#include "temporary_folder.h"

using namespace quern;
using quern::testing::TemporaryFolder;

namespace {

const TensorDict& goldens() {
  static const TensorDict dict = load_safetensors(QUERN_GOLDENS "/images.safetensors");
  return dict;
}

std::string bytes_of(const Tensor& file) {
  return {reinterpret_cast<const char*>(file.data<uint8_t>()), static_cast<size_t>(file.numel())};
}

std::string file(const std::string& name) { return bytes_of(goldens().at(name + ".file")); }

/// The largest difference of two pictures' values; 256 where their sizes differ.
int difference(const Tensor& a, const Tensor& b) {
  if (a.dtype() != DType::u8 || a.shape() != b.shape()) return 256;
  int most = 0;
  const Tensor x = raw::contiguous(a), y = raw::contiguous(b);
  for (int64_t i = 0; i < x.numel(); ++i)
    most = std::max(most, std::abs(x.data<uint8_t>()[i] - y.data<uint8_t>()[i]));
  return most;
}

Tensor part(const Tensor& image, const ImageBox& box) {
  return raw::slice(raw::slice(image, 0, box.top, box.top + box.height), 1, box.left,
                    box.left + box.width);
}

std::string error_of(const std::string& bytes) {
  try {
    decode_image(bytes, "picture");
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::string with(std::string text, size_t at, const std::string& bytes) {
  return text.replace(at, bytes.size(), bytes);
}

/// A PNG file of that header and no pixels.
std::string png_of(const std::string& size) { return with(file("png_rgb_8"), 16, size); }

}  // namespace

TEST_CASE("pictures of every kind have the pixels that Pillow gives them") {
  int seen = 0;
  for (const auto& [name, tensor] : goldens()) {
    if (!name.ends_with(".file")) continue;
    const std::string kind = name.substr(0, name.size() - 5);
    CAPTURE(kind);
    const Tensor& expected = goldens().at(kind + ".rgb");
    CHECK(difference(decode_image(bytes_of(tensor), kind), expected) == 0);
    ++seen;
  }
  CHECK(seen == 45);
}

TEST_CASE("a part of a picture has the bits of the whole") {
  std::mt19937 dice(1);
  for (const auto& [name, tensor] : goldens()) {
    if (!name.ends_with(".file")) continue;
    CAPTURE(name);
    const std::string bytes = bytes_of(tensor);
    const ImageDecoder decoder(bytes, name);
    for (int64_t reduction = 1; reduction <= decoder.max_reduction(); reduction *= 2) {
      const int64_t height = (decoder.height() + reduction - 1) / reduction;
      const int64_t width = (decoder.width() + reduction - 1) / reduction;
      const Tensor whole = decoder.decode({0, 0, height, width}, reduction);
      for (int i = 0; i < 60; ++i) {
        ImageBox box;
        box.top = dice() % height, box.left = dice() % width;
        box.height = 1 + dice() % (height - box.top), box.width = 1 + dice() % (width - box.left);
        CAPTURE(reduction);
        CAPTURE(box.top);
        CAPTURE(box.left);
        CAPTURE(box.height);
        CAPTURE(box.width);
        CHECK(difference(decoder.decode(box, reduction), part(whole, box)) == 0);
      }
    }
  }
}

TEST_CASE("a picture from a file, and what is none") {
  const TemporaryFolder folder;
  const std::string path = folder.write("a.jpeg", file("jpeg_420"));
  CHECK(difference(read_image(path), goldens().at("jpeg_420.rgb")) == 0);
  CHECK_THROWS_WITH_AS(read_image(folder / "none"), doctest::Contains("No such file"), Error);
  CHECK_THROWS_WITH_AS(read_image(folder / "."), doctest::Contains("regular file"), Error);
  CHECK_THROWS_WITH_AS(read_image(folder.write("empty", "")),
                       doctest::Contains("empty: expected a JPEG or PNG file"), Error);
  ImageDecoder moved = ImageDecoder::open(path);
  const ImageDecoder decoder = std::move(moved);
  CHECK(difference(decoder.decode(), goldens().at("jpeg_420.rgb")) == 0);
}

TEST_CASE("errors of decoding name the picture and say what was expected") {
  for (const char* name : {"jpeg_420", "jpeg_progressive", "png_rgb_8", "png_interlaced_8_2"})
    for (const double share : {0.1, 0.5, 0.9}) {
      const std::string whole = file(name);
      CAPTURE(name);
      const std::string error =
          error_of(whole.substr(0, static_cast<size_t>(share * static_cast<double>(whole.size()))));
      CHECK(error.starts_with("[decode_image] picture: expected "));
    }
  CHECK(error_of(file("jpeg_420").substr(0, file("jpeg_420").size() - 1)).find("cut short") !=
        std::string::npos);

  using namespace std::string_literals;
  // A few bytes that claim to be a billion pixels, or none.
  CHECK(error_of(png_of("\0\0\xff\xff\0\0\xff\xff"s))
            .starts_with("[decode_image] picture: expected"));
  std::string jpeg = file("jpeg_420");
  const size_t frame = jpeg.find("\xff\xc0");
  CHECK(error_of(with(jpeg, frame + 5, "\xff\xdc\xff\xdc"))
            .find("expected 1..268435456 pixels, got 65500×65500") != std::string::npos);
  CHECK(error_of(with(jpeg, frame + 5, "\x20\x00\x20\x00"s)).find("bytes for 8192×8192 pixels") !=
        std::string::npos);
  CHECK(error_of(with(jpeg, frame + 5, "\0\0"s)) != "");

  const std::string bytes = file("png_rgb_8");
  const ImageDecoder decoder(bytes, "picture");  // 13×19
  for (const ImageBox& box :
       {ImageBox{0, 0, 0, 1}, {0, 0, 14, 1}, {-1, 0, 2, 2}, {0, 18, 1, 2}, {INT64_MAX, 0, 1, 1}})
    CHECK_THROWS_WITH_AS(decoder.decode(box), doctest::Contains("box: expected a part of 13×19"),
                         Error);
  CHECK_THROWS_WITH_AS(decoder.decode({0, 0, 1, 1}, 2), doctest::Contains("reduction"), Error);
}
