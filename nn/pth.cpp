#include "quern/nn/pth.h"

#include <fcntl.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "quern/nn/checkpoint.h"
#include "quern/nn/pickle.h"
#include "quern/nn/safetensors.h"
#include "quern/nn/safetensors_header.h"
#include "quern/nn/zip.h"

namespace quern {
namespace {

using pickle::Kind;
using pickle::Value;
using safetensors::quote;

constexpr std::string_view op = "load_pth";
static_assert(std::endian::native == std::endian::little, "elements are little-endian");

/// A storage's element type. Without a dtype: what tensors of quern cannot hold.
struct Format {
  std::string_view name;
  std::optional<DType> dtype;
  int64_t bytes;
};
constexpr Format kFormats[] = {
    {"torch.FloatStorage", DType::f32, 4}, {"torch.DoubleStorage", DType::f64, 8},
    {"torch.HalfStorage", DType::f16, 2},  {"torch.BFloat16Storage", DType::bf16, 2},
    {"torch.LongStorage", DType::i64, 8},  {"torch.IntStorage", DType::i32, 4},
    {"torch.ByteStorage", DType::u8, 1},   {"torch.BoolStorage", DType::boolean, 1},
    {"torch.CharStorage", {}, 1},          {"torch.ShortStorage", {}, 2},
    {"torch.ComplexFloatStorage", {}, 8},  {"torch.ComplexDoubleStorage", {}, 16},
};
const Format* find_format(std::string_view name) {
  const auto found = std::ranges::find(kFormats, name, &Format::name);
  return found == std::end(kFormats) ? nullptr : found;
}

File open_regular(const std::string& path) {
  File file(path, O_RDONLY | O_NONBLOCK);  // or a named pipe would wait for a writer
  check(file.is_open(), op, "{}: expected a readable file, got: {}", path, File::reason());
  check(S_ISREG(file.status().st_mode), op, "{}: expected a regular file, got another kind", path);
  return file;
}

/// The first bytes of a file; fewer where it is shorter.
std::string first_bytes(const std::string& path, const File& file, int64_t bytes) {
  std::string text(static_cast<size_t>(std::min<int64_t>(bytes, file.status().st_size)), '\0');
  const bool ok = file.read_at(text.data(), static_cast<int64_t>(text.size()), 0);
  check(ok, op, "{}: expected {} bytes, got: {}", path, text.size(),
        errno == 0 ? "the end of the file" : File::reason());
  return text;
}

/// A file's values, and where the elements of its storages lie.
class Contents {
 public:
  virtual ~Contents() = default;
  virtual const Value& root() const = 0;
  /// Bytes that the file has for a storage. Error: none.
  virtual int64_t bytes_of(const std::string& key) const = 0;
  virtual void read(const std::string& key, void* data, int64_t bytes) const = 0;
};

/// <name>/data.pkl, and the storages as <name>/data/<key>.
class ZipContents final : public Contents {
 public:
  ZipContents(const std::string& path, const File& file) : zip_(path, file) {
    for (uint64_t i = 0; i < zip_.num_entries() && folder_.empty(); ++i) {
      const std::string name = zip_.name(i), wanted = "/data.pkl";
      if (name.ends_with(wanted) && name.find('/') == name.size() - wanted.size())
        folder_ = name.substr(0, name.size() - wanted.size() + 1);
    }
    check(!folder_.empty(), op,
          "{}: expected an entry NAME/data.pkl, as torch.save writes it, got none", path);
    if (zip_.contains(folder_ + "byteorder")) {
      const std::string order = text("byteorder", 16, path);
      check(order == "little", op, "{}: byteorder: expected little, got {}", path, quote(order));
    }
    constexpr int64_t most = 64 << 20;
    pickle::Input input(path, text("data.pkl", most, path));
    document_.emplace(input);
  }

  const Value& root() const override { return document_->root(); }
  int64_t bytes_of(const std::string& key) const override {
    return zip_.find(folder_ + "data/" + key).bytes;
  }
  void read(const std::string& key, void* data, int64_t) const override {
    zip_.read(zip_.find(folder_ + "data/" + key), data);
  }

 private:
  std::string text(const std::string& name, int64_t most, const std::string& path) const {
    const ZipFile::Entry entry = zip_.find(folder_ + name);
    check(entry.bytes <= most, op, "{}: {}: expected at most {} bytes, got {}", path, quote(name),
          most, entry.bytes);
    std::string text(static_cast<size_t>(entry.bytes), '\0');
    zip_.read(entry, text.data());
    return text;
  }

  ZipFile zip_;
  std::string folder_;  // "archive/"
  std::optional<pickle::Document> document_;
};

/// Pickles of a magic number, the protocol, the system, the values and the keys of storages; then
/// of each storage the number of its elements, and these.
class StreamContents final : public Contents {
 public:
  StreamContents(const std::string& path, const File& file)
      : path_(path), file_(file), input_(path, file, file.status().st_size) {
    const auto expect = [&](bool ok, std::string_view what) {
      check(ok, op, "{}: expected {}", path, what);
    };
    constexpr std::string_view magic = "\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";
    constexpr int64_t protocol = 1001;
    const pickle::Document first(input_);
    expect(first.root().is(Kind::other) && first.root().text == magic,
           "torch.save's magic number, got another pickle");
    const pickle::Document second(input_);
    expect(second.root().is(Kind::integer) && second.root().integer == protocol,
           "torch.save's protocol 1001, got another");
    const pickle::Document system(input_);
    const Value* little = system.root().find("little_endian");
    expect(little != nullptr && little->is(Kind::boolean) && little->integer == 1,
           "little-endian elements, got others");
    document_.emplace(input_);
    keys_.emplace(input_);
    expect(keys_->root().is(Kind::list), "a list of storages, got something else");
    place_storages();
  }

  const Value& root() const override { return document_->root(); }

  int64_t bytes_of(const std::string& key) const override { return at(key).bytes; }
  void read(const std::string& key, void* data, int64_t bytes) const override {
    check(file_.read_at(data, bytes, at(key).offset), op,
          "{}: storage {}: expected {} bytes, got: {}", path_, quote(key), bytes,
          errno == 0 ? "the end of the file" : File::reason());
  }

 private:
  /// One storage lies after the other, each as long as its type and its number of elements say.
  void place_storages() {
    std::unordered_map<std::string_view, const Format*> formats;
    for (const Value& value : document_->values())
      if (value.is(Kind::storage))
        formats[value.items[1]->text] = find_format(value.items[0]->text);
    const int64_t end = file_.status().st_size;
    int64_t at = input_.position();
    for (const Value* key : keys_->root().items) {
      const auto format = formats.find(key->text);
      check(format != formats.end() && format->second != nullptr, op,
            "{}: storage {}: expected a tensor of a known type in it, got none", path_,
            quote(key->text));
      const int64_t itemsize = format->second->bytes;
      int64_t elements = 0, bytes = 0;
      const int64_t left = end - at - static_cast<int64_t>(sizeof elements);
      check(left >= 0 && file_.read_at(&elements, sizeof elements, at), op,
            "{}: storage {}: expected its size, got: the end of the file", path_, quote(key->text));
      check(elements >= 0 && !__builtin_mul_overflow(elements, itemsize, &bytes) && bytes <= left,
            op,
            "{}: storage {}: expected at most the {} bytes that are left, got {} elements of {}",
            path_, quote(key->text), left, elements, itemsize);
      at += static_cast<int64_t>(sizeof elements);
      places_.insert_or_assign(key->text, Place{at, bytes});
      at += bytes;
    }
  }

  struct Place {
    int64_t offset, bytes;
  };
  const Place& at(const std::string& key) const {
    const auto found = places_.find(key);
    check(found != places_.end(), op,
          "{}: storage {}: expected it in the list of storages, got none", path_, quote(key));
    return found->second;
  }

  const std::string& path_;
  const File& file_;
  pickle::Input input_;
  std::optional<pickle::Document> document_, keys_;
  std::unordered_map<std::string, Place> places_;
};

/// Makes tensors of descriptions.
class Loader {
 public:
  Loader(const std::string& path, const Contents& contents, int64_t file_bytes)
      : path_(path), contents_(contents), left_(file_bytes) {}

  Tensor tensor(const std::string& name, const Value& value) {
    const Elements& elements = load(name, *value.items[0]);
    try {
      return Tensor(elements.storage, dims(*value.items[2]), dims(*value.items[3]),
                    value.items[1]->integer, *elements.format->dtype);
    } catch (const Error& error) {
      fail(op, fmt::format("{}: {}: {}", path_, quote(name), error.what()));
    }
  }

 private:
  struct Elements {
    std::shared_ptr<Storage> storage;
    const Format* format;
  };

  static Dims dims(const Value& tuple) {
    Dims dims;
    for (const Value* item : tuple.items) {
      check(item->is(Kind::integer), "tensor", "sizes and strides: expected integers, got {}",
            to_string(item->kind));
      dims.push_back(item->integer);
    }
    return dims;
  }

  const Elements& load(const std::string& name, const Value& storage) {
    const std::string &type = storage.items[0]->text, &key = storage.items[1]->text;
    const int64_t elements = storage.items[2]->integer;
    const Format* format = find_format(type);
    check(format != nullptr && format->dtype, op,
          "{}: {}: expected f32, f64, f16, bf16, i64, i32, u8 or bool, got {}", path_, quote(name),
          quote(type));
    const auto [found, is_new] = loaded_.try_emplace(key);
    if (!is_new) {
      check(found->second.format == format, op, "{}: {}: expected storage {} to be of {}, got {}",
            path_, quote(name), quote(key), found->second.format->name, type);
      return found->second;
    }
    int64_t bytes = 0;
    const int64_t there = contents_.bytes_of(key);
    check(
        elements >= 0 && !__builtin_mul_overflow(elements, format->bytes, &bytes) && bytes == there,
        op, "{}: {}: expected a storage of {} elements of {} bytes, got {} bytes", path_,
        quote(name), elements, format->bytes, there);
    left_ -= bytes;  // entries that lie upon each other would ask for more than the file has
    check(left_ >= 0, op, "{}: {}: expected storages side by side, got more than the file holds",
          path_, quote(name));
    found->second = {make_storage(bytes), format};
    if (bytes > 0) fill(name, key, found->second, bytes);
    return found->second;
  }

  void fill(const std::string& name, const std::string& key, const Elements& to, int64_t bytes) {
    std::byte* data = to.storage->data();
    contents_.read(key, data, bytes);
    if (to.format->dtype == DType::boolean)
      check(std::all_of(data, data + bytes, [](std::byte b) { return b <= std::byte{1}; }), op,
            "{}: {}: expected bool bytes of 0 and 1", path_, quote(name));
  }

  const std::string& path_;
  const Contents& contents_;
  int64_t left_;
  std::unordered_map<std::string, Elements> loaded_;
};

/// The dictionary of tensors that `value` is or holds; null if none. Each is looked into once, as
/// they may hold each other in circles.
const Value* find_state(const Value& value, std::unordered_set<const Value*>& seen) {
  if (!value.is(Kind::dict) || !seen.insert(&value).second) return nullptr;
  for (const char* key : {"state_dict", "model_state_dict", "model", "net"})
    if (const Value* inner = value.find(key); inner != nullptr && seen.size() < 16)
      if (const Value* state = find_state(*inner, seen)) return state;
  for (size_t i = 1; i < value.items.size(); i += 2)
    if (value.items[i]->is(Kind::tensor) && value.items[i - 1]->is(Kind::string)) return &value;
  return nullptr;
}

TensorDict load(const std::string& path, const File& file, bool is_zip) {
  std::unique_ptr<Contents> contents;
  if (is_zip) contents = std::make_unique<ZipContents>(path, file);
  else contents = std::make_unique<StreamContents>(path, file);

  std::unordered_set<const Value*> seen;
  const Value* state = find_state(contents->root(), seen);
  check(state != nullptr, op,
        "{}: expected a dictionary of tensors, or one under \"state_dict\" or \"model\", got {}",
        path, to_string(contents->root().kind));
  Loader loader(path, *contents, file.status().st_size);
  TensorDict dict;
  for (size_t i = 0; i < state->items.size(); i += 2) {
    const Value &name = *state->items[i], &value = *state->items[i + 1];
    if (!name.is(Kind::string) || !value.is(Kind::tensor)) continue;
    check(!dict.contains(name.text), op, "{}: {}: expected a new name, got it again", path,
          quote(name.text));
    dict.insert(name.text, loader.tensor(name.text, value));
  }
  return dict;
}

enum class Form { safetensors, zip, stream, unknown };

Form form_of(const std::string& path, const File& file) {
  const std::string first = first_bytes(path, file, 9);
  if (first.starts_with("PK\x03\x04")) return Form::zip;
  if (first.size() > 8 && first[8] == '{') return Form::safetensors;
  if (first.starts_with('\x80')) return Form::stream;
  return Form::unknown;
}

TensorDict without_prefix(TensorDict dict) {
  for (const std::string_view prefix : {"_orig_mod.", "module.", "model."}) {
    const auto has_it = [&](const auto& entry) { return entry.first.starts_with(prefix); };
    if (dict.empty() || !std::ranges::all_of(dict, has_it)) continue;
    TensorDict shorter;
    for (const auto& [name, tensor] : dict) shorter.insert(name.substr(prefix.size()), tensor);
    return without_prefix(std::move(shorter));
  }
  return dict;
}

}  // namespace

TensorDict load_pth(const std::string& path) {
  const File file = open_regular(path);
  const Form form = form_of(path, file);
  check(form == Form::zip || form == Form::stream, op,
        "{}: expected a file that torch.save wrote, got another", path);
  return load(path, file, form == Form::zip);
}

TensorDict load_weights(const std::string& path) {
  Form form;
  {
    const File file = open_regular(path);
    form = form_of(path, file);
  }
  check(form != Form::unknown, "load_weights",
        "{}: expected a safetensors file, or one that torch.save wrote, got another", path);
  if (form != Form::safetensors) return without_prefix(load_pth(path));
  TensorDict dict = load_safetensors(path);
  if (!load_safetensors_metadata(path).contains(nn::kCheckpointKey))
    return without_prefix(std::move(dict));
  TensorDict model;
  for (const auto& [name, tensor] : dict)
    if (const std::string_view prefix = "model."; name.starts_with(prefix))
      model.insert(name.substr(prefix.size()), tensor);
  return model;
}

}  // namespace quern
