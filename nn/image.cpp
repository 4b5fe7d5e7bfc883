#include "quern/nn/image.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "quern/nn/file.h"
#include "quern/nn/image_format.h"

namespace quern {
namespace {

using image::kOp;

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Orientations 5..8 swap the sides.
bool is_transposed(int orientation) { return orientation >= 5; }
/// Does the picture's first row come from the end of what it is a row of in the file, and so the
/// first column?
bool is_row_reversed(int orientation) {
  return orientation == 3 || orientation == 4 || orientation == 7 || orientation == 8;
}
bool is_column_reversed(int orientation) {
  return orientation == 2 || orientation == 3 || orientation == 6 || orientation == 7;
}

/// The part of the stored picture, of height×width pixels, that `box` of the upright one shows.
ImageBox stored_box(const ImageBox& box, int orientation, int64_t height, int64_t width) {
  ImageBox b = box;
  if (is_row_reversed(orientation))
    b.top = (is_transposed(orientation) ? width : height) - box.top - box.height;
  if (is_column_reversed(orientation))
    b.left = (is_transposed(orientation) ? height : width) - box.left - box.width;
  if (is_transposed(orientation)) std::swap(b.top, b.left), std::swap(b.height, b.width);
  return b;
}

void set_upright(const uint8_t* stored, const ImageBox& stored_box, int orientation, uint8_t* out) {
  const int64_t rows = stored_box.height, columns = stored_box.width;
  const bool transposed = is_transposed(orientation);
  const int64_t height = transposed ? columns : rows, width = transposed ? rows : columns;
  int64_t down = transposed ? 1 : columns, right = transposed ? columns : 1, origin = 0;
  if (is_row_reversed(orientation)) origin += (height - 1) * down, down = -down;
  if (is_column_reversed(orientation)) origin += (width - 1) * right, right = -right;
  for (int64_t y = 0; y < height; ++y)
    for (int64_t x = 0; x < width; ++x, out += 3)
      std::copy_n(stored + 3 * (origin + y * down + x * right), 3, out);
}

}  // namespace

namespace image {

void check_size(const std::string& name, int64_t height, int64_t width, int64_t bytes_needed,
                size_t bytes) {
  check(height > 0 && width > 0 && height <= kMaxPixels / width, kOp,
        "{}: expected 1..{} pixels, got {}×{}", name, kMaxPixels, height, width);
  check(bytes_needed <= static_cast<int64_t>(bytes), kOp,
        "{}: expected at least {} bytes for {}×{} pixels, got {}", name, bytes_needed, height,
        width, bytes);
}

}  // namespace image

ImageDecoder::ImageDecoder(std::string_view bytes, const std::string& name) {
  if (bytes.starts_with("\xff\xd8\xff")) format_ = image::open_jpeg(bytes, name);
  else if (bytes.starts_with("\x89PNG\r\n\x1a\n")) format_ = image::open_png(bytes, name);
  else fail(kOp, fmt::format("{}: expected a JPEG or PNG file, got another kind", name));
  if (format_->orientation == 1) return;
  int64_t& reduction = format_->max_reduction;  // turned, the last pixels, of less, would be first
  while (format_->height % reduction != 0 || format_->width % reduction != 0) reduction /= 2;
}

ImageDecoder::ImageDecoder(std::vector<char> bytes, const std::string& name)
    : ImageDecoder(std::string_view(bytes.data(), bytes.size()), name) {
  bytes_ = std::move(bytes);
}

ImageDecoder ImageDecoder::open(const std::string& path) {
  const File file(path, O_RDONLY | O_NONBLOCK);  // or a named pipe would wait for a writer
  check(file.is_open(), kOp, "{}: expected a readable file, got: {}", path, File::reason());
  const struct stat status = file.status();
  check(S_ISREG(status.st_mode), kOp, "{}: expected a regular file, got another kind", path);
  std::vector<char> bytes(static_cast<size_t>(status.st_size));
  const bool ok = file.read(bytes.data(), status.st_size);
  check(ok, kOp, "{}: expected {} bytes, got: {}", path, bytes.size(),
        errno == 0 ? "the end of the file" : File::reason());
  return ImageDecoder(std::move(bytes), path);
}

ImageDecoder::~ImageDecoder() = default;
ImageDecoder::ImageDecoder(ImageDecoder&&) noexcept = default;
ImageDecoder& ImageDecoder::operator=(ImageDecoder&&) noexcept = default;

int64_t ImageDecoder::height() const {
  return is_transposed(format_->orientation) ? format_->width : format_->height;
}

int64_t ImageDecoder::width() const {
  return is_transposed(format_->orientation) ? format_->height : format_->width;
}

int64_t ImageDecoder::max_reduction() const { return format_->max_reduction; }

Tensor ImageDecoder::decode() const { return decode({0, 0, height(), width()}); }

Tensor ImageDecoder::decode(const ImageBox& box, int64_t reduction) const {
  const bool known = reduction == 1 || reduction == 2 || reduction == 4 || reduction == 8;
  check(known && reduction <= max_reduction(), kOp,
        "reduction: expected 1, 2, 4 or 8, and at most {}, got {}", max_reduction(), reduction);
  const int64_t rows = ceil_div(height(), reduction), columns = ceil_div(width(), reduction);
  check(box.height > 0 && box.width > 0 && box.top >= 0 && box.left >= 0 &&
            box.height <= rows - box.top && box.width <= columns - box.left,
        kOp, "box: expected a part of {}×{} pixels, got {}×{} at {}, {}", rows, columns, box.height,
        box.width, box.top, box.left);

  Tensor pixels = empty({box.height, box.width, 3}, DType::u8);
  const int orientation = format_->orientation;
  if (orientation == 1) {
    format_->decode(box, reduction, pixels.out<uint8_t>());
    return pixels;
  }
  const ImageBox part = stored_box(box, orientation, ceil_div(format_->height, reduction),
                                   ceil_div(format_->width, reduction));
  const Tensor stored = empty({part.height, part.width, 3}, DType::u8);
  format_->decode(part, reduction, stored.out<uint8_t>());
  set_upright(stored.data<uint8_t>(), part, orientation, pixels.out<uint8_t>());
  return pixels;
}

Tensor decode_image(std::string_view bytes, const std::string& name) {
  return ImageDecoder(bytes, name).decode();
}

Tensor read_image(const std::string& path) { return ImageDecoder::open(path).decode(); }

}  // namespace quern
