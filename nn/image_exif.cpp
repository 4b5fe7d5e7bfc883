// Which way up a picture is: tag 0x0112 of the first directory of EXIF 2.32 (TIFF 6.0), and
// tiff:Orientation of XMP.
#include <cstdint>

#include "quern/nn/image_format.h"

namespace quern::image {
namespace {

constexpr unsigned kOrientation = 0x0112, kShort = 3, kLong = 4;

int valid(uint32_t orientation) {
  return orientation >= 1 && orientation <= 8 ? static_cast<int>(orientation) : 1;
}

}  // namespace

int orientation_of_exif(std::string_view tiff) {
  const bool little = tiff.starts_with(std::string_view("II*\0", 4));
  if (!little && !tiff.starts_with(std::string_view("MM\0*", 4))) return 0;
  const auto number = [&](size_t at, size_t bytes) {  // 0 beyond the end
    uint32_t value = 0;
    if (at > tiff.size() || bytes > tiff.size() - at) return value;
    for (size_t i = 0; i < bytes; ++i)
      value = value << 8 | static_cast<uint8_t>(tiff[at + (little ? bytes - 1 - i : i)]);
    return value;
  };
  const size_t directory = number(4, 4), entries = number(directory, 2);
  for (size_t i = 0; i < entries; ++i) {
    const size_t entry = directory + 2 + 12 * i;  // tag, type, count, value
    if (number(entry, 2) != kOrientation) continue;
    const uint32_t type = number(entry + 2, 2);
    if (type == kShort || type == kLong) return valid(number(entry + 8, type == kShort ? 2 : 4));
  }
  return 0;
}

int orientation_of_xmp(std::string_view xml) {
  for (const std::string_view name : {"tiff:Orientation=\"", "tiff:Orientation>"}) {
    const size_t at = xml.find(name);
    if (at == xml.npos || at + name.size() >= xml.size()) continue;
    const char digit = xml[at + name.size()];
    if (digit >= '0' && digit <= '9') return valid(static_cast<uint32_t>(digit - '0'));
  }
  return 0;
}

}  // namespace quern::image
