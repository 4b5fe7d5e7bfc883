// What each format of pictures does for ImageDecoder. Internal to nn/image*.cpp.
#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "quern/nn/image.h"

namespace quern::image {

inline constexpr std::string_view kOp = "decode_image";
inline constexpr int64_t kMaxPixels = int64_t{1} << 28;

/// A picture as it is stored, whichever way up.
class Format {
 public:
  virtual ~Format() = default;
  /// Writes `box` of the stored picture made smaller by `reduction`, as RGB, rows without gaps.
  virtual void decode(const ImageBox& box, int64_t reduction, uint8_t* out) const = 0;

  int64_t height = 0, width = 0, max_reduction = 1;
  int orientation = 1;  ///< EXIF's: 1..8
};

/// Errors: see ImageDecoder's constructor. `bytes` must outlive the result.
std::unique_ptr<Format> open_jpeg(std::string_view bytes, const std::string& name);
std::unique_ptr<Format> open_png(std::string_view bytes, const std::string& name);

/// Errors: an empty picture, one of more than kMaxPixels, and one whose pixels take `bytes_needed`
/// at least, more than the file's.
void check_size(const std::string& name, int64_t height, int64_t width, int64_t bytes_needed,
                size_t bytes);

// Orientation, 1..8, or 0 where the text tells none.
int orientation_of_exif(std::string_view tiff);  ///< "II*\0" or "MM\0*" and directories
int orientation_of_xmp(std::string_view xml);

}  // namespace quern::image
