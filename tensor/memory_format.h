// The two layouts of a 4-D tensor. Shapes are [N, C, H, W] in both; only the strides differ.
#pragma once
#include <cstdint>
#include <string_view>

#include "quern/tensor/text_formatter.h"

namespace quern {

/// In which order the elements of a tensor lie.
enum class MemoryFormat : uint8_t {
  contiguous,     ///< row-major: N, C, H, W (and any other rank)
  channels_last,  ///< N, H, W, C; 4-D only
};

/// "contiguous", "channels_last"
constexpr std::string_view to_string(MemoryFormat format) {
  return format == MemoryFormat::contiguous ? "contiguous" : "channels_last";
}

/// Which dimension of a tensor lies i-th in memory, counted from the outermost.
constexpr int dimension_at(int i, MemoryFormat format) {
  return format == MemoryFormat::contiguous || i == 0 ? i : i == 3 ? 1 : i + 1;
}

}  // namespace quern

template <>
struct fmt::formatter<quern::MemoryFormat> : quern::TextFormatter<quern::MemoryFormat> {};
