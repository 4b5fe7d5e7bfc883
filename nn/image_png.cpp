// PNG by libpng.
#include "quern/nn/image_format.h"

#ifdef QUERN_HAS_PNG

#include <png.h>

#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstring>
#include <vector>

namespace quern::image {
namespace {

constexpr int64_t kSignatureBytes = 8;
constexpr int64_t kMaxInflation = 1032;  // of deflate: 258 bytes from two bits
constexpr std::string_view kXmp("XML:com.adobe.xmp\0\0", 19);  // of an iTXt chunk, not compressed

/// The data of the first chunk of this type that begins with `prefix`; empty where there is none.
std::string_view find_chunk(std::string_view file, std::string_view type,
                            std::string_view prefix = "") {
  for (file.remove_prefix(kSignatureBytes); file.size() >= 12;) {
    const size_t length = png_get_uint_32(reinterpret_cast<png_const_bytep>(file.data()));
    if (length > file.size() - 12) break;
    const std::string_view data = file.substr(8, length);
    if (file.substr(4, 4) == type && data.starts_with(prefix)) return data;
    file.remove_prefix(length + 12);
  }
  return {};
}

struct Reader {
  png_structp png = nullptr;
  png_infop info = nullptr;
  std::string_view rest;
  char message[128] = "";

  explicit Reader(std::string_view bytes) : rest(bytes) {
    png = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, on_error,
                                 [](png_structp, png_const_charp) {});
    if (png != nullptr) info = png_create_info_struct(png);
    if (info == nullptr) {
      png_destroy_read_struct(&png, &info, nullptr);
      throw std::bad_alloc();
    }
    png_set_read_fn(png, this, [](png_structp p, png_bytep out, size_t bytes) {
      auto& left = static_cast<Reader*>(png_get_io_ptr(p))->rest;
      if (bytes > left.size()) png_error(p, "the end of the file");
      std::memcpy(out, left.data(), bytes);
      left.remove_prefix(bytes);
    });
    png_set_user_limits(png, kMaxPixels, kMaxPixels);
    // Of other chunks nothing is used.
    png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
  }
  ~Reader() { png_destroy_read_struct(&png, &info, nullptr); }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  [[noreturn]] static void on_error(png_structp p, png_const_charp text) {
    auto* self = static_cast<Reader*>(png_get_error_ptr(p));
    std::strncpy(self->message, text, sizeof self->message - 1);
    png_longjmp(p, 1);
  }

  /// Runs f(), calls of libpng's, which leave nothing to destroy when one of them jumps out.
  template <class F>
  void run(const std::string& name, const F& f) {
    if (setjmp(png_jmpbuf(png)) != 0)
      fail(kOp, fmt::format("{}: expected a PNG file, got: {}", name, message));
    f();
  }
};

/// Samples as stored in 1 or 2 bytes to RGB, as Pillow does.
struct ToRgb {
  int type, depth;
  std::array<uint8_t, 3 * 256> palette;  ///< of grey and palette pictures of up to 8 bits

  int channels() const { return png_channels[type]; }
  static constexpr int png_channels[] = {1, 0, 3, 1, 2, 0, 4};

  void operator()(const uint8_t* in, int64_t pixels, uint8_t* out) const {
    const int step = channels() * (depth == 16 ? 2 : 1);
    for (int64_t i = 0; i < pixels; ++i, in += step, out += 3) {
      if (type == PNG_COLOR_TYPE_GRAY && depth == 16)
        std::fill_n(out, 3, in[0] == 0 ? in[1] : uint8_t{255});
      else if (type == PNG_COLOR_TYPE_GRAY_ALPHA) std::fill_n(out, 3, in[0]);
      else if (channels() == 1) std::copy_n(palette.data() + 3 * in[0], 3, out);
      else
        for (int c = 0; c < 3; ++c) out[c] = in[c * (depth == 16 ? 2 : 1)];
    }
  }
};

class Png final : public Format {
 public:
  Png(std::string_view bytes, const std::string& name) : bytes_(bytes), name_(name) {
    Reader reader(bytes);
    reader.run(name, [&] { png_read_info(reader.png, reader.info); });
    height = png_get_image_height(reader.png, reader.info);
    width = png_get_image_width(reader.png, reader.info);
    const int64_t bits = int64_t{png_get_bit_depth(reader.png, reader.info)} *
                         png_get_channels(reader.png, reader.info);
    check_size(name, height, width, height * ((width * bits + 7) / 8) / kMaxInflation,
               bytes.size());
    orientation = orientation_of_exif(find_chunk(bytes, "eXIf"));
    if (orientation == 0) orientation = orientation_of_xmp(find_chunk(bytes, "iTXt", kXmp));
    if (orientation == 0) orientation = 1;
  }

  void decode(const ImageBox& box, int64_t, uint8_t* out) const override {
    Reader reader(bytes_);
    ToRgb to_rgb{};
    int passes = 1;
    size_t row_bytes = 0;
    reader.run(name_, [&] {
      png_read_info(reader.png, reader.info);
      to_rgb = make_conversion(reader);
      png_set_packing(reader.png);
      passes = png_set_interlace_handling(reader.png);
      png_read_update_info(reader.png, reader.info);
      row_bytes = png_get_rowbytes(reader.png, reader.info);
    });
    // Every row is decoded, so that whether a file is broken does not depend on the box. An
    // interlaced picture is there after its last pass.
    const int64_t kept = passes > 1 ? height : 1;
    std::vector<uint8_t> rows(static_cast<size_t>(kept) * row_bytes);
    const int64_t inset = box.left * static_cast<int64_t>(row_bytes) / width;
    reader.run(name_, [&] {
      for (int pass = 0; pass < passes; ++pass)
        for (int64_t y = 0; y < height; ++y) {
          uint8_t* const row = rows.data() + (y % kept) * static_cast<int64_t>(row_bytes);
          png_read_row(reader.png, row, nullptr);
          if (pass == passes - 1 && y >= box.top && y < box.top + box.height)
            to_rgb(row + inset, box.width, out + (y - box.top) * box.width * 3);
        }
    });
  }

 private:
  static ToRgb make_conversion(Reader& reader) {
    ToRgb result{png_get_color_type(reader.png, reader.info),
                 png_get_bit_depth(reader.png, reader.info),
                 {}};
    const int levels = 1 << std::min(result.depth, 8);
    const bool grey = result.type == PNG_COLOR_TYPE_GRAY;
    for (int i = 0; grey && i < levels; ++i)
      std::fill_n(result.palette.data() + 3 * i, 3, static_cast<uint8_t>(i * 255 / (levels - 1)));
    png_colorp colors = nullptr;
    int count = 0;
    if (result.type == PNG_COLOR_TYPE_PALETTE &&
        png_get_PLTE(reader.png, reader.info, &colors, &count) != 0)
      for (int i = 0; i < count; ++i) {
        const uint8_t rgb[] = {colors[i].red, colors[i].green, colors[i].blue};
        std::copy_n(rgb, 3, result.palette.data() + 3 * i);
      }
    return result;
  }

  const std::string_view bytes_;
  const std::string name_;
};

}  // namespace

std::unique_ptr<Format> open_png(std::string_view bytes, const std::string& name) {
  return std::make_unique<Png>(bytes, name);
}

}  // namespace quern::image

#else

namespace quern::image {

std::unique_ptr<Format> open_png(std::string_view, const std::string& name) {
  fail(kOp, fmt::format("{}: expected a quern that was built with libpng, got one without", name));
}

}  // namespace quern::image

#endif
