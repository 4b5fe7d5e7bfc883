// Pickles of torch.save, read by a machine that knows values and runs nothing. Internal to pth.cpp.
//
// A pickle is a program for a stack machine that may name any function of Python's and call it. Of
// that machine this is the part that makes values: numbers, strings, tuples, lists, dictionaries,
// and tensors as descriptions of where their elements lie. A name that it does not know ends the
// reading with an error that tells the name. Opcodes: CPython's Lib/pickletools.py.
#pragma once
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "quern/nn/file.h"

namespace quern::pickle {

/// Bytes in order: those of a file from a place on, or a text's.
class Input {
 public:
  /// `path` is for messages, and must outlive the input as the file must.
  Input(const std::string& path, const File& file, int64_t file_bytes);
  Input(const std::string& path, std::string text);

  /// Errors: the end, named as that of the file; those of reading it.
  uint8_t byte();
  void read(void* data, int64_t bytes);
  /// Allocates no more than there is left to read.
  std::string text(uint64_t bytes);
  std::string line();  ///< without its end
  template <class T>
  T number() {  // little-endian
    T value;
    read(&value, sizeof value);
    return value;
  }
  int64_t position() const { return begin_ + static_cast<int64_t>(at_); }
  int64_t left() const { return end_ - position(); }
  const std::string& path() const { return path_; }

 private:
  void refill();

  const std::string& path_;
  const File* file_;
  std::string buffer_;  // bytes begin_.. of the file
  size_t at_ = 0;
  int64_t begin_ = 0, end_;
};

enum class Kind {
  none,
  boolean,
  integer,
  real,
  string,
  tuple,
  list,
  dict,
  name,
  storage,
  tensor,
  other
};
std::string_view to_string(Kind kind);

struct Value {
  Kind kind = Kind::none;
  int64_t integer = 0;  ///< of boolean, integer; an integer of more than 64 bits is `other`
  /// string: its bytes; name: "torch.FloatStorage"; other: an integer's bytes, if it is one
  std::string text = {};
  /// tuple, list: the items; dict: key, value, key, value ...; storage: type (a name), key (a
  /// string), number of elements; tensor: storage, offset, sizes, strides
  std::vector<const Value*> items = {};

  bool is(Kind k) const { return kind == k; }
  /// The last value of a dict that has this string as its key; null if none has.
  const Value* find(std::string_view key) const;
};

/// The values of a pickle. They may hold each other in circles, and live as long as this does.
class Document {
 public:
  /// Reads a pickle to its end. Errors, which name the file: an opcode, a name or a call that is
  /// not known; operands of another kind; more than 64 MiB, or than four million values or items.
  explicit Document(Input& input);
  const Value& root() const { return *root_; }
  /// All of them, in the order in which they were made.
  const std::deque<Value>& values() const { return values_; }

 private:
  friend class Machine;
  std::deque<Value> values_;
  const Value* root_ = nullptr;
};

}  // namespace quern::pickle
