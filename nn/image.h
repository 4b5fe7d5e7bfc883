// Pictures from JPEG and PNG files, as Pillow's ImageOps.exif_transpose(image).convert("RGB") gives
// them: grey, palette, CMYK and 16-bit ones become 8-bit RGB, alpha is dropped, and a picture that
// says in EXIF or XMP how it was turned stands upright.
//
// A file is not trusted: more than 2^28 pixels, more than its bytes can encode, and one that is cut
// short are errors before pixels are allocated. JPEG needs libjpeg-turbo and PNG libpng when quern
// is built; without them files of that kind are errors that say so.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "quern/tensor/tensor.h"

namespace quern {

/// Pixels top..top+height-1, left..left+width-1 of a picture.
struct ImageBox {
  int64_t top = 0, left = 0, height = 0, width = 0;  ///< in pixels
};

namespace image {
class Format;
}

/// An encoded picture: its size at once, its pixels on demand, and no more of them than are asked
/// for. May be used by one thread at a time.
class ImageDecoder {
 public:
  /// Reads the header. `bytes` are used until the decoder's end; `name` is what errors call the
  /// picture. Errors: neither JPEG nor PNG; a broken or implausible header; a file cut short.
  ImageDecoder(std::string_view bytes, const std::string& name);
  /// The same of a file, which is read whole. Errors: unreadable, not a regular file; as above.
  static ImageDecoder open(const std::string& path);
  ~ImageDecoder();
  ImageDecoder(ImageDecoder&&) noexcept;             ///< the other one is of no use then
  ImageDecoder& operator=(ImageDecoder&&) noexcept;  ///< the other one is of no use then

  int64_t height() const;  ///< of the upright picture, in pixels
  int64_t width() const;   ///< likewise
  /// The largest factor that decode() can make a picture smaller by: 8 for JPEG, unless it is
  /// turned and its sides are no multiples of that; 1 for PNG.
  int64_t max_reduction() const;

  /// u8 [height, width, 3]. Errors: broken data; what the format's library says of it.
  Tensor decode() const;
  /// u8 [box.height, box.width, 3]: that part of the picture, or of the picture made smaller by
  /// `reduction` (1, 2, 4, 8), which has ceil(height / reduction) rows and ceil(width / reduction)
  /// columns and takes a fraction of the time. Without reduction the same bits as in the whole
  /// picture. Errors: as above; an empty box or one that reaches out of the picture; a reduction
  /// other than these or beyond max_reduction().
  Tensor decode(const ImageBox& box, int64_t reduction = 1) const;

 private:
  explicit ImageDecoder(std::vector<char> bytes, const std::string& name);

  std::vector<char> bytes_;  // of open()
  std::unique_ptr<image::Format> format_;
};

/// u8 [H, W, 3] of a JPEG or PNG file in memory. `name`: what errors call it.
Tensor decode_image(std::string_view bytes, const std::string& name = "image");
/// The same of ImageDecoder::open(path).
Tensor read_image(const std::string& path);

}  // namespace quern
