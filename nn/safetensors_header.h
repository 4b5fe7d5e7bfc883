// The header of a safetensors file, to and from text. Internal to safetensors.cpp.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "quern/nn/safetensors.h"

namespace quern::safetensors {

inline constexpr int64_t kMaxHeaderBytes = 100'000'000;

struct HeaderEntry {
  std::string name;
  std::string_view dtype = {};  ///< "F32": one of the formats, or empty while unknown
  Shape shape = {};
  int64_t begin = 0, end = 0;  ///< bytes from the end of the header
};

struct Header {
  std::vector<HeaderEntry> entries;  ///< in the order of the text
  std::vector<size_t> by_offset;     ///< indices into entries, in the order of the data
  Metadata metadata;
};

/// An element type of the format.
struct Format {
  std::string_view name;
  DType dtype;
};
const Format* find_format(std::string_view name);
std::string_view format_name(DType dtype);

/// `text` in quotes for a message: not too long, and nothing in it that a terminal would obey.
std::string quote(std::string_view text);

/// Parses and checks the text against `data_bytes`, what follows it in the file. Allocates in
/// proportion to the text alone.
Header parse_header(const std::string& path, std::string_view text, int64_t data_bytes);

/// The text, padded with spaces so that the data after it starts at a multiple of 8.
std::string format_header(const std::string& path, const TensorDict& tensors,
                          const Metadata& metadata);

}  // namespace quern::safetensors
