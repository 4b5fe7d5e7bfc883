#include "quern/nn/pickle.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <unordered_map>

#include "quern/nn/safetensors_header.h"
#include "quern/tensor/check.h"

namespace quern::pickle {
namespace {

constexpr std::string_view op = "load_pth";
constexpr int64_t kMaxBytes = 64 << 20;
constexpr size_t kMaxValues = 4'000'000, kBuffer = 1 << 16;

/// Names of values and types, which may stand in a pickle and are never called.
constexpr std::string_view kInert[] = {
    "torch.bool",    "torch.uint8",   "torch.int8",     "torch.int16",
    "torch.int32",   "torch.int64",   "torch.bfloat16", "torch.float16",
    "torch.float32", "torch.float64", "torch.strided",  "torch.contiguous_format",
};

bool is_storage(std::string_view name) {
  return name.starts_with("torch.") && name.ends_with("Storage") &&
         name.find('.', 6) == std::string_view::npos;
}

}  // namespace

std::string_view to_string(Kind kind) {
  constexpr std::string_view names[] = {"None",     "a bool",    "an integer", "a float",
                                        "a string", "a tuple",   "a list",     "a dictionary",
                                        "a name",   "a storage", "a tensor",   "another object"};
  return names[static_cast<size_t>(kind)];
}

const Value* Value::find(std::string_view key) const {
  const Value* found = nullptr;
  for (size_t i = 0; is(Kind::dict) && i + 1 < items.size(); i += 2)
    if (items[i]->is(Kind::string) && items[i]->text == key) found = items[i + 1];
  return found;
}

// ---- Input ----

Input::Input(const std::string& path, const File& file, int64_t file_bytes)
    : path_(path), file_(&file), end_(file_bytes) {}

Input::Input(const std::string& path, std::string text)
    : path_(path),
      file_(nullptr),
      buffer_(std::move(text)),
      end_(static_cast<int64_t>(buffer_.size())) {}

void Input::refill() {
  begin_ = position();
  at_ = 0;
  const int64_t bytes = std::min<int64_t>(kBuffer, end_ - begin_);
  check(bytes > 0, op, "{}: expected more, got: the end of the file", path_);
  buffer_.resize(static_cast<size_t>(bytes));
  check(file_->read_at(buffer_.data(), bytes, begin_), op, "{}: expected {} more bytes, got: {}",
        path_, bytes, errno == 0 ? "the end of the file" : File::reason());
}

void Input::read(void* data, int64_t bytes) {
  check(bytes <= left(), op, "{}: expected {} more bytes, got: the end of the file", path_, bytes);
  char* out = static_cast<char*>(data);
  while (bytes > 0) {
    if (at_ == buffer_.size()) refill();
    const auto count = std::min(bytes, static_cast<int64_t>(buffer_.size() - at_));
    std::memcpy(out, buffer_.data() + at_, static_cast<size_t>(count));
    out += count, bytes -= count, at_ += static_cast<size_t>(count);
  }
}

uint8_t Input::byte() { return number<uint8_t>(); }

std::string Input::text(uint64_t bytes) {
  check(bytes <= static_cast<uint64_t>(left()) && bytes <= kMaxBytes, op,
        "{}: expected a text of at most {} bytes, got {}", path_, std::min(left(), kMaxBytes),
        bytes);
  std::string text(bytes, '\0');
  read(text.data(), static_cast<int64_t>(bytes));
  return text;
}

std::string Input::line() {
  std::string line;
  for (char c = static_cast<char>(byte()); c != '\n'; c = static_cast<char>(byte())) {
    check(line.size() < kBuffer, op, "{}: expected a line of at most {} bytes, got more", path_,
          kBuffer);
    line += c;
  }
  return line;
}

// ---- Machine ----

class Machine {
 public:
  Machine(Input& input, Document& document)
      : input_(input), document_(document), begin_(input.position()) {}

  void run() {
    while (step(input_.byte()))
      check(input_.position() - begin_ <= kMaxBytes, op,
            "{}: expected a pickle of at most {} bytes, got more", input_.path(), kMaxBytes);
    document_.root_ = pop();
  }

 private:
  using Args = std::vector<const Value*>;

  [[noreturn]] void complain(const std::string& message) const {
    fail(op, fmt::format("{}: byte {} of the pickle: {}", input_.path(), input_.position() - begin_,
                         message));
  }
  void expect(bool ok, std::string_view expected, std::string_view got) const {
    if (!ok) complain(fmt::format("expected {}, got {}", expected, got));
  }
  const Value* expect(const Value* value, Kind kind) const {
    expect(value->is(kind), to_string(kind), to_string(value->kind));
    return value;
  }
  [[noreturn]] void refuse(std::string_view name) const {
    complain(fmt::format("expected tensors, dictionaries, lists, numbers and strings, got {}",
                         safetensors::quote(name)));
  }

  Value* make(Value value) {
    expect(document_.values_.size() < kMaxValues, "at most 4000000 values", "more");
    count(value.items.size());
    return &document_.values_.emplace_back(std::move(value));
  }
  void count(size_t items) {
    items_ += items;
    expect(items_ <= kMaxValues, "at most 4000000 items", "more");
  }
  void push(Value value) { stack_.push_back(make(std::move(value))); }
  void push_integer(int64_t value) { push({.kind = Kind::integer, .integer = value}); }
  void push_string(uint64_t bytes) { push({.kind = Kind::string, .text = input_.text(bytes)}); }

  /// The value on top, within the innermost mark.
  Value* top() const {
    expect(stack_.size() > (marks_.empty() ? 0 : marks_.back()), "a value on the stack", "none");
    return stack_.back();
  }
  Value* pop() {
    Value* value = top();
    stack_.pop_back();
    return value;
  }
  /// The values since the last mark, which goes.
  Args pop_marked() {
    expect(!marks_.empty(), "a mark on the stack", "none");
    const auto begin = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    Args values(begin, stack_.end());
    stack_.erase(begin, stack_.end());
    marks_.pop_back();
    return values;
  }
  void push_tuple(size_t n) {
    Args items(n);
    for (size_t i = n; i > 0; --i) items[i - 1] = pop();
    push({.kind = Kind::tuple, .items = std::move(items)});
  }
  void add(Kind kind, const Args& items) {
    Value* value = top();
    expect(value, kind);
    expect(kind != Kind::dict || items.size() % 2 == 0, "a value for each key", "none");
    count(items.size());
    value->items.insert(value->items.end(), items.begin(), items.end());
  }

  void push_long(uint64_t bytes) {
    std::string text = input_.text(bytes);
    if (text.size() > 8) return push({.kind = Kind::other, .text = std::move(text)});
    const bool negative = !text.empty() && (text.back() & 0x80) != 0;
    text.resize(8, negative ? '\xff' : '\0');
    int64_t value;
    std::memcpy(&value, text.data(), 8);
    push_integer(value);
  }

  void put(uint32_t index) { memo_[index] = top(); }
  void get(uint32_t index) {
    const auto found = memo_.find(index);
    expect(found != memo_.end(), "a value that was kept", fmt::format("number {}", index));
    stack_.push_back(found->second);
  }

  /// A name is looked at when it is read, so that nothing unknown waits to be called.
  void push_name(std::string name) {
    if (!is_storage(name) && std::ranges::find(kInert, name) == std::end(kInert) &&
        std::ranges::find(kCalls, name, &Call::name) == std::end(kCalls))
      refuse(name);
    push({.kind = Kind::name, .text = std::move(name)});
  }

  void call(bool may_be_class_only) {
    const Value* args = expect(pop(), Kind::tuple);
    const Value* name = expect(pop(), Kind::name);
    const auto found = std::ranges::find(kCalls, name->text, &Call::name);
    if (found == std::end(kCalls) || (may_be_class_only && !found->is_class)) refuse(name->text);
    (this->*found->run)(args->items);
  }

  void expect_args(const Args& args, size_t least, size_t most) const {
    expect(args.size() >= least && args.size() <= most, fmt::format("{} arguments", least),
           fmt::format("{}", args.size()));
  }

  /// OrderedDict() and what is added to it later; Python 2's took a list of pairs.
  void ordered_dict(const Args& args) {
    expect_args(args, 0, 1);
    Args items;
    if (!args.empty())
      for (const Value* pair : expect(args[0], Kind::list)->items) {
        expect((pair->is(Kind::list) || pair->is(Kind::tuple)) && pair->items.size() == 2, "pairs",
               to_string(pair->kind));
        items.insert(items.end(), pair->items.begin(), pair->items.end());
      }
    push({.kind = Kind::dict, .items = std::move(items)});
  }

  void size(const Args& args) {
    expect_args(args, 1, 1);
    push({.kind = Kind::tuple, .items = expect(args[0], Kind::tuple)->items});
  }

  /// (storage, offset, sizes, strides, requires_grad, hooks, metadata)
  void rebuild_tensor(const Args& args) {
    expect_args(args, 4, 7);
    expect(args[0], Kind::storage);
    expect(args[1], Kind::integer);
    expect(args[2], Kind::tuple);
    expect(args[3], Kind::tuple);
    push({.kind = Kind::tensor, .items = {args.begin(), args.begin() + 4}});
  }

  /// (tensor, requires_grad, hooks)
  void rebuild_parameter(const Args& args) {
    expect_args(args, 1, 3);
    push({.kind = Kind::tensor, .items = expect(args[0], Kind::tensor)->items});
  }

  void inert(const Args&) { push({.kind = Kind::other}); }

  /// ("storage", type, key, location, elements[, None])
  void persistent_id() {
    const Args& id = expect(pop(), Kind::tuple)->items;
    expect(id.size() >= 5 && id[0]->is(Kind::string), "a storage", "another persistent object");
    if (id[0]->text != "storage") refuse(id[0]->text);
    expect(id.size() == 5 || (id.size() == 6 && id[5]->is(Kind::none)), "a storage of its own",
           "a view of another");
    expect(is_storage(expect(id[1], Kind::name)->text), "a storage's type", id[1]->text);
    expect(id[2], Kind::string);
    expect(id[4], Kind::integer);
    push({.kind = Kind::storage, .items = {id[1], id[2], id[4]}});
  }

  bool step(uint8_t opcode);

  struct Call {
    std::string_view name;
    void (Machine::*run)(const Args&);
    bool is_class = false;
  };
  static const std::array<Call, 7> kCalls;

  Input& input_;
  Document& document_;
  const int64_t begin_;
  std::vector<Value*> stack_;
  std::vector<size_t> marks_;  // sizes of the stack
  std::unordered_map<uint32_t, Value*> memo_;
  size_t items_ = 0;
};

/// All that a pickle may call; none of it is Python.
constexpr std::array<Machine::Call, 7> Machine::kCalls = {{
    {"collections.OrderedDict", &Machine::ordered_dict, true},
    {"torch.Size", &Machine::size},
    {"torch._utils._rebuild_tensor", &Machine::rebuild_tensor},
    {"torch._utils._rebuild_tensor_v2", &Machine::rebuild_tensor},
    {"torch._utils._rebuild_parameter", &Machine::rebuild_parameter},
    {"torch.device", &Machine::inert},
    {"argparse.Namespace", &Machine::inert, true},  // the options that a training script keeps
}};

/// False at the end of the pickle.
bool Machine::step(uint8_t opcode) {
  switch (opcode) {
    case 0x80: {  // PROTO
      const int protocol = input_.byte();
      expect(protocol >= 2 && protocol <= 5, "a pickle of protocol 2..5",
             fmt::format("{}", protocol));
      break;
    }
    case 0x95: input_.number<uint64_t>(); break;  // FRAME
    case '.': return false;

    case '(': marks_.push_back(stack_.size()); break;
    case '0': pop(); break;
    case '1': pop_marked(); break;

    case 'N': push({.kind = Kind::none}); break;
    case 0x88: push({.kind = Kind::boolean, .integer = 1}); break;
    case 0x89: push({.kind = Kind::boolean, .integer = 0}); break;
    case 'J': push_integer(input_.number<int32_t>()); break;
    case 'K': push_integer(input_.number<uint8_t>()); break;
    case 'M': push_integer(input_.number<uint16_t>()); break;
    case 0x8a: push_long(input_.number<uint8_t>()); break;
    case 0x8b: push_long(input_.number<uint32_t>()); break;
    case 'G': input_.number<uint64_t>(), push({.kind = Kind::real}); break;

    case 'X':
    case 'T':
    case 'B': push_string(input_.number<uint32_t>()); break;
    case 0x8c:
    case 'U':
    case 'C': push_string(input_.number<uint8_t>()); break;
    case 0x8d:
    case 0x8e: push_string(input_.number<uint64_t>()); break;

    case ')': push({.kind = Kind::tuple}); break;
    case 0x85: push_tuple(1); break;
    case 0x86: push_tuple(2); break;
    case 0x87: push_tuple(3); break;
    case 't': push({.kind = Kind::tuple, .items = pop_marked()}); break;
    case ']': push({.kind = Kind::list}); break;
    case 'l': push({.kind = Kind::list, .items = pop_marked()}); break;
    case 'a': {
      const Value* item = pop();
      add(Kind::list, {item});
      break;
    }
    case 'e': add(Kind::list, pop_marked()); break;
    case '}': push({.kind = Kind::dict}); break;
    case 's': {
      const Value *value = pop(), *key = pop();
      add(Kind::dict, {key, value});
      break;
    }
    case 'u': add(Kind::dict, pop_marked()); break;

    case 'q': put(input_.number<uint8_t>()); break;
    case 'r': put(input_.number<uint32_t>()); break;
    case 0x94: put(static_cast<uint32_t>(memo_.size())); break;
    case 'h': get(input_.number<uint8_t>()); break;
    case 'j': get(input_.number<uint32_t>()); break;

    case 'c': {
      std::string module = input_.line();
      push_name(std::move(module) + '.' + input_.line());
      break;
    }
    case 0x93: {
      const Value *name = expect(pop(), Kind::string), *module = expect(pop(), Kind::string);
      push_name(module->text + '.' + name->text);
      break;
    }
    case 'R': call(false); break;
    case 0x81: call(true); break;  // NEWOBJ: of a class
    case 'b': {                    // the attributes of an object are nobody's business here
      pop();
      const Kind kind = top()->kind;
      expect(kind == Kind::dict || kind == Kind::other, "a dictionary", to_string(kind));
      break;
    }
    case 'Q': persistent_id(); break;
    default:
      complain(fmt::format("expected an opcode that torch.save writes, got {:#04x}", opcode));
  }
  return true;
}

Document::Document(Input& input) { Machine(input, *this).run(); }

}  // namespace quern::pickle
