#include "quern/nn/safetensors.h"

#include <fcntl.h>

#include <algorithm>
#include <bit>
#include <cerrno>

#include "quern/nn/file.h"
#include "quern/nn/file_replacement.h"
#include "quern/nn/safetensors_header.h"
#include "quern/tensor/raw.h"

namespace quern {
namespace {

using safetensors::Header;
using safetensors::HeaderEntry;
using safetensors::kMaxHeaderBytes;

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

class Reader {
 public:
  explicit Reader(const std::string& path)
      : path_(path),
        file_(path, O_RDONLY | O_NONBLOCK) {  // or a named pipe would wait for a writer
    check(file_.is_open(), op, "{}: expected a readable file, got: {}", path, File::reason());
    struct stat status = file_.status();
    check(S_ISREG(status.st_mode), op, "{}: expected a regular file, got another kind", path);
    int64_t file_bytes = status.st_size;
    check(file_bytes >= 8, op, "{}: expected 8 bytes of header length, got a file of {}", path,
          file_bytes);
    uint64_t header_bytes = 0;
    read(&header_bytes, sizeof header_bytes);
    check(header_bytes <= kMaxHeaderBytes, op, "{}: expected a header of at most {} bytes, got {}",
          path, kMaxHeaderBytes, header_bytes);
    auto length = static_cast<int64_t>(header_bytes);
    check(length <= file_bytes - 8, op, "{}: expected a header of {} bytes, got a file of {}", path,
          length, file_bytes);
    std::string text(header_bytes, '\0');
    read(text.data(), length);
    header = safetensors::parse_header(path, text, file_bytes - 8 - length);
  }

  /// The tensor of an entry; entries are asked for in the order of the data.
  Tensor read_tensor(const HeaderEntry& entry) const {
    const auto& format = *safetensors::find_format(entry.dtype);
    Tensor tensor = empty(entry.shape, format.dtype);
    read(tensor.out_ptr(), tensor.nbytes());
    if (format.dtype == DType::boolean) {
      auto* bytes = static_cast<const uint8_t*>(tensor.data_ptr());
      check(std::all_of(bytes, bytes + tensor.numel(), [](uint8_t byte) { return byte <= 1; }), op,
            "{}: {}: expected BOOL bytes of 0 and 1", path_, safetensors::quote(entry.name));
    }
    return tensor;
  }

  Header header;

 private:
  static constexpr std::string_view op = "load_safetensors";

  void read(void* data, int64_t bytes) const {
    const bool ok = file_.read(data, bytes);
    check(ok, op, "{}: expected {} more bytes, got: {}", path_, bytes,
          errno == 0 ? "the end of the file" : File::reason());
  }

  const std::string& path_;
  File file_;
};

}  // namespace

TensorDict load_safetensors(const std::string& path) {
  Reader reader(path);
  Tensors tensors(reader.header.entries.size());
  for (size_t i : reader.header.by_offset)
    tensors[i] = reader.read_tensor(reader.header.entries[i]);
  TensorDict dict;
  for (size_t i = 0; i < tensors.size(); ++i)
    dict.insert(reader.header.entries[i].name, tensors[i]);
  return dict;
}

Metadata load_safetensors_metadata(const std::string& path) { return Reader(path).header.metadata; }

void save_safetensors(const std::string& path, const TensorDict& tensors,
                      const Metadata& metadata) {
  std::string header = safetensors::format_header(path, tensors, metadata);
  FileReplacement file("save_safetensors", path);
  uint64_t header_bytes = header.size();
  file.write(&header_bytes, sizeof header_bytes);
  file.write(header.data(), static_cast<int64_t>(header.size()));
  for (const auto& [name, tensor] : tensors) {
    Tensor dense = raw::contiguous(tensor);
    file.write(dense.data_ptr(), dense.nbytes());
  }
  file.commit();
}

}  // namespace quern
