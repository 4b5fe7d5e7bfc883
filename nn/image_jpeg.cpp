// JPEG by libjpeg-turbo, in its own API: unlike TurboJPEG's it decodes parts of a picture, and
// tells which of its warnings is the end of the file.
#include "quern/nn/image_format.h"

#ifdef QUERN_HAS_JPEG

#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <vector>

// After <cstdio>, which they need.
#include <jerror.h>
#include <jpeglib.h>

namespace quern::image {
namespace {

constexpr int kMaxScans = 500;  // a few bytes each may cost as much as the whole picture
constexpr std::string_view kEndOfImage = "\xff\xd9";
constexpr std::string_view kExif("Exif\0\0", 6), kXmp("http://ns.adobe.com/xap/1.0/\0", 29);

struct Decompressor {
  jpeg_decompress_struct info{};  // first: callbacks get its address
  jpeg_error_mgr errors{};
  jpeg_progress_mgr progress{};
  std::jmp_buf on_error{};
  char message[JMSG_LENGTH_MAX] = "";

  Decompressor() {
    info.err = jpeg_std_error(&errors);
    errors.error_exit = [](j_common_ptr common) {
      auto* self = reinterpret_cast<Decompressor*>(common);
      self->errors.format_message(common, self->message);
      std::longjmp(self->on_error, 1);
    };
    // Of warnings, which tell of broken data that is decoded as well as may be, one is an error:
    // that libjpeg has begun to make up the rest of the file.
    errors.emit_message = [](j_common_ptr common, int level) {
      if (level < 0 && common->err->msg_code == JWRN_JPEG_EOF) common->err->error_exit(common);
    };
    errors.output_message = [](j_common_ptr) {};
  }
  ~Decompressor() { jpeg_destroy_decompress(&info); }
  Decompressor(const Decompressor&) = delete;
  Decompressor& operator=(const Decompressor&) = delete;

  /// Runs f(), calls of libjpeg's, which leave nothing to destroy when one of them jumps out.
  template <class F>
  void run(const std::string& name, const F& f) {
    if (setjmp(on_error) != 0)
      fail(kOp, fmt::format("{}: expected a JPEG file, got: {}", name, message));
    f();
  }

  void read_header(std::string_view bytes) {
    jpeg_create_decompress(&info);
    progress.progress_monitor = [](j_common_ptr common) {
      const auto* self = reinterpret_cast<Decompressor*>(common);
      if (self->info.input_scan_number <= kMaxScans) return;
      common->err->msg_code = JERR_NOTIMPL;
      common->err->error_exit(common);
    };
    info.progress = &progress;
    jpeg_mem_src(&info, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
    jpeg_save_markers(&info, JPEG_APP0 + 1, 0xffff);
    jpeg_read_header(&info, TRUE);
  }
};

/// What the stored blocks take at least: each has a bit or more, except in arithmetic coding.
int64_t least_bytes(const jpeg_decompress_struct& info) {
  if (info.arith_code) return 0;
  int64_t blocks = 0;
  for (int c = 0; c < info.num_components; ++c) {
    const jpeg_component_info& component = info.comp_info[c];
    blocks += int64_t{component.width_in_blocks} * int64_t{component.height_in_blocks};
  }
  return blocks / 8;
}

int orientation_of(const jpeg_decompress_struct& info) {
  int exif = 0, xmp = 0;
  for (auto* marker = info.marker_list; marker != nullptr; marker = marker->next) {
    const std::string_view text(reinterpret_cast<const char*>(marker->data), marker->data_length);
    if (exif == 0 && text.starts_with(kExif)) exif = orientation_of_exif(text.substr(kExif.size()));
    if (xmp == 0 && text.starts_with(kXmp)) xmp = orientation_of_xmp(text.substr(kXmp.size()));
  }
  return exif != 0 ? exif : xmp != 0 ? xmp : 1;
}

/// As Pillow: Adobe's convention, where 255 is no ink, whether or not the file says that it is
/// Adobe's.
void cmyk_to_rgb(const uint8_t* cmyk, int64_t pixels, uint8_t* rgb) {
  for (int64_t i = 0; i < pixels; ++i, cmyk += 4, rgb += 3)
    for (int c = 0; c < 3; ++c) {
      // (1 - ink)·(1 - black) of 255, rounded as Pillow does
      const int white = cmyk[3], product = (255 - cmyk[c]) * white + 128;
      rgb[c] = static_cast<uint8_t>(std::max(0, white - ((product + (product >> 8)) >> 8)));
    }
}

class Jpeg final : public Format {
 public:
  Jpeg(std::string_view bytes, const std::string& name) : bytes_(bytes), name_(name) {
    Decompressor jpeg;
    jpeg.run(name, [&] { jpeg.read_header(bytes); });
    height = jpeg.info.image_height, width = jpeg.info.image_width, max_reduction = 8;
    const int components = jpeg.info.num_components;
    check(components == 1 || components == 3 || components == 4, kOp,
          "{}: expected 1, 3 or 4 components, got {}", name, components);
    check_size(name, height, width, least_bytes(jpeg.info), bytes.size());
    const size_t data = bytes.size() - jpeg.info.src->bytes_in_buffer;
    check(bytes.rfind(kEndOfImage) != bytes.npos && bytes.rfind(kEndOfImage) >= data, kOp,
          "{}: expected a JPEG file with an end, got one that is cut short", name);
    orientation = orientation_of(jpeg.info);
  }

  void decode(const ImageBox& box, int64_t reduction, uint8_t* out) const override {
    Decompressor jpeg;
    std::vector<uint8_t> row;
    jpeg_decompress_struct& info = jpeg.info;
    JDIMENSION left = 0;
    jpeg.run(name_, [&] {
      jpeg.read_header(bytes_);
      const bool inks = info.num_components == 4;
      info.out_color_space = inks ? JCS_CMYK : JCS_RGB;
      info.scale_num = 1, info.scale_denom = static_cast<unsigned>(reduction);
      jpeg_start_decompress(&info);
      if (box.width < int64_t{info.output_width}) {
        // Colour is smoothed across columns: those at the edge of what is decoded are not final.
        constexpr int64_t margin = 2;
        const int64_t begin = std::max<int64_t>(0, box.left - margin);
        const int64_t end = std::min<int64_t>(info.output_width, box.left + box.width + margin);
        left = static_cast<JDIMENSION>(begin);
        auto columns = static_cast<JDIMENSION>(end - begin);
        jpeg_crop_scanline(&info, &left, &columns);
      }
    });
    const auto inset = box.left - int64_t{left};
    const bool inks = info.out_color_space == JCS_CMYK;
    const bool direct = !inks && box.width == int64_t{info.output_width};
    row.resize(size_t{info.output_width} * static_cast<size_t>(info.output_components));
    uint8_t* const scratch = row.data();
    jpeg.run(name_, [&] {
      jpeg_skip_scanlines(&info, static_cast<JDIMENSION>(box.top));
      for (int64_t y = 0; y < box.height; ++y) {
        uint8_t* const to = out + y * box.width * 3;
        JSAMPROW target = direct ? to : scratch;
        jpeg_read_scanlines(&info, &target, 1);
        if (inks) cmyk_to_rgb(scratch + inset * 4, box.width, to);
        else if (!direct) std::copy_n(scratch + inset * 3, box.width * 3, to);
      }
    });
  }

 private:
  const std::string_view bytes_;
  const std::string name_;
};

}  // namespace

std::unique_ptr<Format> open_jpeg(std::string_view bytes, const std::string& name) {
  return std::make_unique<Jpeg>(bytes, name);
}

}  // namespace quern::image

#else

namespace quern::image {

std::unique_ptr<Format> open_jpeg(std::string_view, const std::string& name) {
  fail(kOp, fmt::format("{}: expected a quern that was built with libjpeg-turbo, got one without",
                        name));
}

}  // namespace quern::image

#endif
