#include "quern/nn/safetensors_header.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <unordered_set>

namespace quern::safetensors {
namespace {

using nlohmann::json;

constexpr Format kFormats[] = {
    {"F32", DType::f32}, {"F64", DType::f64}, {"BF16", DType::bf16}, {"F16", DType::f16},
    {"I64", DType::i64}, {"I32", DType::i32}, {"U8", DType::u8},     {"BOOL", DType::boolean},
};

/// Takes the parser's events one by one and builds no tree, so that a hostile text costs no more
/// than its length. Each event is legal in few places, so nothing nests deeper than the format.
class HeaderReader final : public json::json_sax_t {
 public:
  HeaderReader(const std::string& path, Header& header) : path_(path), header_(header) {}

  bool start_object(size_t) override {
    switch (at_) {
      case At::start: return go(At::name);
      case At::tensor: return go(At::field);
      case At::metadata: return go(At::metadata_key);
      default: unexpected("{");
    }
  }

  bool end_object() override {
    switch (at_) {
      case At::name: return go(At::end);
      case At::field:
        if (!has_dtype_ || !has_shape_ || !has_offsets_) unexpected("}");
        return go(At::name);
      case At::metadata_key: return go(At::name);
      default: unexpected("}");
    }
  }

  bool start_array(size_t) override {
    switch (at_) {
      case At::shape: return go(At::size);
      case At::offsets: return go(At::offset_begin);
      default: unexpected("[");
    }
  }

  bool end_array() override {
    if (at_ != At::size && at_ != At::offsets_close) unexpected("]");
    return go(At::field);
  }

  bool key(std::string& text) override {
    switch (at_) {
      case At::name:
        where_ = quote(text);
        if (!names_.insert(text).second) complain("expected a new name, got it again");
        if (text == "__metadata__") return go(At::metadata);
        header_.entries.push_back({.name = std::move(text)});
        has_dtype_ = has_shape_ = has_offsets_ = false;
        return go(At::tensor);
      case At::field:
        if (text == "dtype" && !std::exchange(has_dtype_, true)) return go(At::dtype);
        if (text == "shape" && !std::exchange(has_shape_, true)) return go(At::shape);
        if (text == "data_offsets" && !std::exchange(has_offsets_, true)) return go(At::offsets);
        unexpected(quote(text));
      default:  // metadata_key: the parser gives keys inside objects only
        if (header_.metadata.contains(text)) unexpected(quote(text) + " again");
        metadata_value_ = &header_.metadata[text];
        return go(At::metadata_value);
    }
  }

  bool string(std::string& text) override {
    switch (at_) {
      case At::dtype: {
        const Format* format = find_format(text);
        if (format == nullptr) unexpected(quote(text));
        header_.entries.back().dtype = format->name;
        return go(At::field);
      }
      case At::metadata_value: *metadata_value_ = std::move(text); return go(At::metadata_key);
      default: unexpected(quote(text));
    }
  }

  bool number_unsigned(uint64_t value) override {
    if (value > std::numeric_limits<int64_t>::max()) unexpected(std::to_string(value));
    auto number = static_cast<int64_t>(value);
    switch (at_) {
      case At::size: {
        Shape& shape = header_.entries.back().shape;
        if (shape.size() == kMaxDims) unexpected(fmt::format("more than {} sizes", kMaxDims));
        shape.push_back(number);
        return true;
      }
      case At::offset_begin: header_.entries.back().begin = number; return go(At::offset_end);
      case At::offset_end: header_.entries.back().end = number; return go(At::offsets_close);
      default: unexpected(std::to_string(value));
    }
  }

  bool number_integer(int64_t value) override { unexpected(std::to_string(value)); }
  bool number_float(double, const std::string& text) override { unexpected(quote(text)); }
  bool null() override { unexpected("null"); }
  bool boolean(bool value) override { unexpected(value ? "true" : "false"); }
  bool binary(json::binary_t&) override { unexpected("binary"); }
  bool parse_error(size_t position, const std::string&, const json::exception&) override {
    fail("load_safetensors",
         fmt::format("{}: header: expected JSON, got an error at byte {}", path_, position));
  }

 private:
  /// Where the text is, named after what must come next.
  enum class At {
    // clang-format off
    start, name, end,                                    // {"name": ...}
    tensor, field,                                       // {"dtype": ..., "shape": ..., ...}
    dtype, shape, size,                                  // "F32", [2,3]
    offsets, offset_begin, offset_end, offsets_close,    // [0,24]
    metadata, metadata_key, metadata_value,              // {"key": "value"}
    // clang-format on
  };
  static constexpr std::string_view kExpected[] = {
      "an object",
      "a tensor's name",
      "the end",
      "an object",
      "dtype, shape and data_offsets, each once",
      "dtype F32, F64, BF16, F16, I64, I32, U8 or BOOL",
      "shape to be an array",
      "shape to hold up to 8 sizes from 0 to 2^63-1",
      "data_offsets to be an array",
      "data_offsets to be two integers from 0 to 2^63-1",
      "data_offsets to be two integers from 0 to 2^63-1",
      "data_offsets to be two integers",
      "an object",
      "keys that differ",
      "a string",
  };

  bool go(At next) {
    at_ = next;
    return true;
  }

  [[noreturn]] void complain(std::string_view what) const {
    fail("load_safetensors", fmt::format("{}: {}: {}", path_, where_, what));
  }

  [[noreturn]] void unexpected(std::string_view got) const {
    complain(fmt::format("expected {}, got {}", kExpected[static_cast<size_t>(at_)], got));
  }

  const std::string& path_;
  Header& header_;
  At at_ = At::start;
  std::string where_ = "header";  // or the name of the tensor that is being read
  std::unordered_set<std::string> names_;
  bool has_dtype_ = false, has_shape_ = false, has_offsets_ = false;
  std::string* metadata_value_ = nullptr;
};

/// Bytes that the shape takes; -1 where the product of its sizes but zeros does not fit an int64.
int64_t bytes_of(const HeaderEntry& entry) {
  int64_t bytes = itemsize(find_format(entry.dtype)->dtype);
  bool is_empty = false;
  for (int64_t size : entry.shape) {
    if (size == 0) is_empty = true;
    else if (__builtin_mul_overflow(bytes, size, &bytes)) return -1;
  }
  return is_empty ? 0 : bytes;
}

}  // namespace

std::string quote(std::string_view text) {
  std::string shown(text.substr(0, 80));
  if (shown.size() < text.size()) shown += "...";
  return json(shown).dump(-1, ' ', true, json::error_handler_t::replace);
}

const Format* find_format(std::string_view name) {
  auto found = std::ranges::find(kFormats, name, &Format::name);
  return found == std::end(kFormats) ? nullptr : found;
}

std::string_view format_name(DType dtype) {
  return std::ranges::find(kFormats, dtype, &Format::dtype)->name;
}

Header parse_header(const std::string& path, std::string_view text, int64_t data_bytes) {
  constexpr std::string_view op = "load_safetensors";
  check(text.starts_with('{'), op, "{}: header: expected it to start with {{", path);
  Header header;
  HeaderReader reader(path, header);
  json::sax_parse(text, &reader);

  for (const HeaderEntry& entry : header.entries) {
    int64_t bytes = bytes_of(entry);
    check(bytes >= 0, op, "{}: {}: expected a shape whose bytes fit 63 bits, got {}", path,
          quote(entry.name), entry.shape);
    check(entry.begin <= entry.end && entry.end - entry.begin == bytes, op,
          "{}: {}: expected data_offsets {} bytes apart ({} {}), got [{},{}]", path,
          quote(entry.name), bytes, entry.dtype, entry.shape, entry.begin, entry.end);
  }

  header.by_offset.resize(header.entries.size());
  std::iota(header.by_offset.begin(), header.by_offset.end(), size_t{0});
  std::ranges::sort(header.by_offset, {}, [&](size_t i) {
    return std::tuple(header.entries[i].begin, header.entries[i].end, i);
  });
  int64_t covered = 0;
  for (size_t i : header.by_offset) {
    const HeaderEntry& entry = header.entries[i];
    check(entry.begin == covered, op, "{}: {}: expected data_offsets to start at {}, got {} ({})",
          path, quote(entry.name), covered, entry.begin, entry.begin < covered ? "overlap" : "gap");
    covered = entry.end;
  }
  check(covered == data_bytes, op, "{}: expected {} bytes of data after the header, got {}", path,
        covered, data_bytes);
  return header;
}

std::string format_header(const std::string& path, const TensorDict& tensors,
                          const Metadata& metadata) {
  constexpr std::string_view op = "save_safetensors";
  std::string text = "{";
  auto begin_item = [&](const std::string& name) {
    if (text.size() > 1) text += ',';
    text += json(name).dump() + ':';
  };
  try {
    if (!metadata.empty()) {
      begin_item("__metadata__");
      text += json(metadata).dump();
    }
    int64_t offset = 0;
    for (const auto& [name, tensor] : tensors) {
      check(name != "__metadata__", op, "{}: expected names other than \"__metadata__\"", path);
      begin_item(name);
      int64_t end = offset + tensor.nbytes();
      text += fmt::format(R"({{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})",
                          format_name(tensor.dtype()), tensor.shape(), offset, end);
      offset = end;
    }
  } catch (const json::exception&) {
    fail(op, fmt::format("{}: expected names and metadata in UTF-8", path));
  }
  text += '}';
  text.append((8 - text.size() % 8) % 8, ' ');
  check(static_cast<int64_t>(text.size()) <= kMaxHeaderBytes, op,
        "{}: expected a header of at most {} bytes, got {}", path, kMaxHeaderBytes, text.size());
  return text;
}

}  // namespace quern::safetensors
