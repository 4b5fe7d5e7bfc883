// Files that torch 2.13 wrote (tests/pytorch/make_pth.py), and files that nobody should write.
#include "quern/nn/pth.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <random>

#include "nn/files/fuzz_trials.h"
#include "quern/nn/safetensors.h"
#include "quern/tensor/raw.h"
#include "temporary_folder.h"

using namespace quern;
using namespace std::string_literals;
using quern::testing::TemporaryFolder, quern::testing::read_file;

namespace {

#ifdef QUERN_HAS_LIBZIP
constexpr bool kHasZip = true;
#else
constexpr bool kHasZip = false;
#endif

bool has_zip() {
  if (!kHasZip) MESSAGE("skipped zip files: built without libzip");
  return kHasZip;
}

std::string golden(const std::string& name) { return QUERN_GOLDENS "/" + name; }

std::string number(uint64_t value, size_t bytes) {
  std::string text(8, '\0');
  std::memcpy(text.data(), &value, 8);
  return text.substr(0, bytes);
}
std::string text(const std::string& value) { return 'X' + number(value.size(), 4) + value; }
std::string name(const std::string& module, const std::string& name) {
  return 'c' + module + '\n' + name + '\n';
}
std::string integer(uint64_t value) { return "\x8a\x08" + number(value, 8); }

const std::string kMagic = "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."s;

/// A file of the stream form that holds the value which `pickle` makes.
std::string stream(const std::string& pickle, const std::string& keys = "]",
                   const std::string& data = "") {
  return kMagic + "\x80\x02M\xe9\x03." + "\x80\x02}" + text("little_endian") + "\x88s." +
         "\x80\x02" + pickle + "." + "\x80\x02" + keys + "." + data;
}
std::string storage(const std::string& type, const std::string& elements,
                    const std::string& key = "0") {
  return "(" + text("storage") + name("torch", type) + text(key) + text("cpu") + elements + "NtQ";
}
std::string tensor(const std::string& storage, const std::string& offset, const std::string& sizes,
                   const std::string& strides) {
  return name("torch._utils", "_rebuild_tensor_v2") + "(" + storage + offset + "(" + sizes + "t(" +
         strides + "t\x89)tR";
}
std::string dict(const std::string& value) {
  std::string pickle = "}";
  return pickle.append(text("w")).append(value).append("s");
}

/// {"w": a tensor} and its storage "0" of as many elements as `data` is said to hold.
std::string one(const std::string& type, uint64_t elements, const std::string& offset,
                const std::string& sizes, const std::string& strides, uint64_t stored,
                const std::string& data) {
  return stream(dict(tensor(storage(type, integer(elements)), offset, sizes, strides)),
                "(" + text("0") + "l", number(stored, 8) + data);
}

/// The message of the error that loading gives, without the file; "" if it loads.
std::string error_of_file(const std::string& path) {
  try {
    load_pth(path);
  } catch (const Error& error) {
    const std::string message = error.what(), prefix = "[load_pth] " + path + ": ";
    REQUIRE(message.starts_with(prefix));
    return message.substr(prefix.size());
  }
  return "";
}
std::string error_of(const std::string& bytes) {
  const TemporaryFolder folder;
  return error_of_file(folder.write("hostile.pth", bytes));
}
bool ends(const std::string& message, const std::string& end) {
  INFO(message);
  return message.ends_with(end);
}

void check_state(const TensorDict& state) {
  REQUIRE(state.size() == 15);
  CHECK(state.begin()->first == "f32");
  const Tensor f32 = state.at("f32"), transposed = state.at("transposed"),
               sliced = state.at("sliced");
  for (int64_t i = 0; i < 12; ++i) {
    CHECK(f32.to_vector<float>()[static_cast<size_t>(i)] == static_cast<float>(i) / 4);
    CHECK(state.at("parameter").to_vector<float>()[static_cast<size_t>(i)] ==
          static_cast<float>(i) / 4 + 1);
  }
  CHECK(transposed.shape() == Shape{4, 3});
  CHECK(transposed.strides() == Strides{1, 4});
  CHECK(transposed.storage() == f32.storage());
  CHECK(transposed.to_vector<float>()[1] == 1);  // [0][1] of 4×3 is [1][0] of 3×4
  CHECK(sliced.storage() == f32.storage());
  CHECK(sliced.to_vector<float>() == std::vector{1.0f, 1.5f, 2.0f, 2.5f});
  CHECK(state.at("expanded").to_vector<int>() == std::vector{0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2});
  CHECK(state.at("expanded").storage()->bytes() == 12);
  CHECK(state.at("channels_last").format() == MemoryFormat::channels_last);
  for (size_t i = 0; i < 24; ++i)
    CHECK(state.at("channels_last").to_vector<float>()[i] == static_cast<float>(i));
  CHECK(state.at("f64").to_vector<double>() == std::vector{0.0, 1 / 3.0, 2 / 3.0, 1.0});
  CHECK(state.at("f16").dtype() == DType::f16);
  CHECK(state.at("f16").to_vector<float>() ==
        std::vector{1.5f, -65504.0f, INFINITY, 0x1p-24f, 0x1.998p-4f});
  CHECK(state.at("bf16").dtype() == DType::bf16);
  CHECK(state.at("bf16").to_vector<float>() == std::vector{1.5f, -3.0f, 0x1p100f});
  CHECK(state.at("i64").to_vector<int64_t>() == std::vector<int64_t>{-(int64_t{1} << 62), 7});
  CHECK(state.at("i32").dtype() == DType::i32);
  CHECK(state.at("i32").to_vector<int>() == std::vector{-5, 6, 7});
  CHECK(state.at("u8").to_vector<int>() == std::vector{0, 255});
  CHECK(state.at("bool").dtype() == DType::boolean);
  CHECK(state.at("bool").to_vector<int>() == std::vector{1, 0, 1});
  CHECK(state.at("scalar").shape() == Shape{});
  CHECK(state.at("scalar").item() == 2.5);
  CHECK(state.at("empty").shape() == Shape{0, 3});
}

}  // namespace

TEST_CASE("pth: what torch.save wrote, in both forms and by pickle's protocols 2, 4 and 5") {
  for (const char* file : {"stream.pth", "stream4.pth"}) check_state(load_pth(golden(file)));
  if (!has_zip()) return;
  for (const char* file : {"zip.pth", "zip5.pth"}) check_state(load_pth(golden(file)));
}

TEST_CASE("pth: the model of a training script's checkpoint") {
  if (!has_zip()) return;
  const TensorDict raw = load_pth(golden("checkpoint.pth"));
  CHECK(raw.size() == 7);
  CHECK(raw.begin()->first == "module.0.weight");
  const TensorDict state = load_weights(golden("checkpoint.pth"));
  CHECK(state.begin()->first == "0.weight");
  CHECK(state.at("0.weight").to_vector<int>() == std::vector{0, 1, 2, 3, 4, 5});
  CHECK(state.at("1.num_batches_tracked").item<int64_t>() == 1);
}

TEST_CASE("load_weights goes by what is in a file, and takes prefixes off") {
  const TemporaryFolder folder;
  save_safetensors(folder / "a.pth", {{"module.model.x", ones({2})}, {"module.model.y", ones({})}});
  const TensorDict state = load_weights(folder / "a.pth");
  CHECK(state.contains("x"));
  CHECK(state.contains("y"));
  save_safetensors(folder / "b", {{"module.x", ones({2})}, {"y", ones({})}});
  CHECK(load_weights(folder / "b").contains("module.x"));
  CHECK(load_weights(golden("stream.pth")).contains("f32"));
  const std::string page = folder.write("page.pth", "<!DOCTYPE html><html>");
  CHECK_THROWS_WITH_AS(load_weights(page),
                       ("[load_weights] " + page +
                        ": expected a safetensors file, or one that torch.save wrote, got another")
                           .c_str(),
                       Error);
  CHECK_THROWS_AS(load_weights(folder.write("empty", "")), Error);
  CHECK_THROWS_AS(load_weights(folder / "none"), Error);
  CHECK_THROWS_AS(load_weights(folder / ""), Error);
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK_THROWS_AS(load_weights(folder / "pipe"), Error);
}

TEST_CASE("pth: a pickle that would run something is refused by its name") {
  const std::string wants = "expected tensors, dictionaries, lists, numbers and strings, got ";
  const auto refused = [&](const std::string& pickle, const std::string& name) {
    CHECK(ends(error_of(stream(pickle)), wants + '"' + name + '"'));
  };
  refused(name("os", "system") + "(" + text("touch /tmp/pwned") + "tR", "os.system");
  refused(name("posix", "system") + text("id") + "\x85R", "posix.system");
  refused(text("builtins") + text("eval") + "\x93", "builtins.eval");
  refused(name("__builtin__", "set") + "]\x85R", "__builtin__.set");
  refused(name("torch", "load") + text("x") + "\x85R", "torch.load");
  refused(name("torch.storage", "_load_from_bytes") + text("x") + "\x85R",
          "torch.storage._load_from_bytes");
  refused(name("torch.hub.x", "FloatStorage"), "torch.hub.x.FloatStorage");
  refused(name("torch", "os.system"), "torch.os.system");
  // Known names that are no functions, or no classes, are not called.
  refused(name("torch", "FloatStorage") + ")R", "torch.FloatStorage");
  refused(name("torch", "float32") + ")R", "torch.float32");
  refused(name("torch", "Size") + ")\x85\x81", "torch.Size");
  refused("(" + text("module") + name("torch", "FloatStorage") + "NNNtQ", "module");
  // Objects by other opcodes: INST, OBJ, NEWOBJ_EX, EXT1, sets, buffers, protocol 0.
  for (const char* opcode : {"(ios\nsystem\n", "(o", ")})\x92", "\x82\x01", "\x8f", "\x97", "I1\n"})
    CHECK(error_of(stream(opcode)).find("expected an opcode that torch.save writes") !=
          std::string::npos);
  // A terminal must not obey a name.
  CHECK(error_of(stream(name("\x1b[31m", "x"))).find('\x1b') == std::string::npos);
}

TEST_CASE("pth: a stack machine without its stack") {
  const auto gives = [&](const std::string& pickle, const std::string& message) {
    CHECK(ends(error_of(stream(pickle)), message));
  };
  gives("", "expected a value on the stack, got none");
  gives("(", "expected a value on the stack, got none");
  gives("t", "expected a mark on the stack, got none");
  gives("K\x01(a", "expected a value on the stack, got none");
  gives("K\x01K\x02s", "expected a value on the stack, got none");
  gives("]K\x01K\x02s", "expected a dictionary, got a list");
  gives("}(K\x01u", "expected a value for each key, got none");
  gives(
      "}K\x01"
      "a",
      "expected a list, got a dictionary");
  gives("h\x05", "expected a value that was kept, got number 5");
  gives("K\x05}b", "expected a dictionary, got an integer");
  gives("K\x05Q", "expected a tuple, got an integer");
  gives(name("collections", "OrderedDict") + "K\x05R", "expected a tuple, got an integer");
  gives("K\x05)R", "expected a name, got an integer");
  gives(name("torch._utils", "_rebuild_tensor_v2") + ")R", "expected 4 arguments, got 0");
  gives(name("torch._utils", "_rebuild_parameter") + "K\x05\x85R",
        "expected a tensor, got an integer");
  gives("X\xff\xff\xff\x7f", "got 2147483647");
  gives("\x8d" + number(~0ull, 8), "got 18446744073709551615");
  gives("\x80\x01", "expected a pickle of protocol 2..5, got 1");
  gives(std::string(1000, '(') + "K\x01", "got an integer");
  // A list that holds itself, and a million brackets, are values like others.
  gives(
      "]q\x01h\x01"
      "a",
      "or one under \"state_dict\" or \"model\", got a list");
  gives("}q\x01" + text("model") + "h\x01s", "got a dictionary");
  // A thousand names that each lead to the same circle take no longer than one.
  std::string circle = "}q\x01(";
  for (const char* key : {"state_dict", "model_state_dict", "model", "net"})
    circle += text(key) + "h\x01";
  for (int i = 0; i < 100'000; ++i) circle += "K\x01N";
  gives(circle + "u", "got a dictionary");
  gives(std::string(1'000'000, ']'), "got a list");
  gives(std::string(4'000'001, ']'), "expected at most 4000000 values, got more");
  // A list of a thousand pairs that thousands of dictionaries would copy.
  std::string bomb = "](";
  for (int i = 0; i < 1000; ++i) bomb += "K\x01K\x01\x86";
  bomb +=
      "eq\x01"
      "0" +
      name("collections", "OrderedDict") +
      "q\x02"
      "0";
  for (int i = 0; i < 3000; ++i) bomb += "h\x02h\x01\x85R0";
  gives(bomb, "expected at most 4000000 items, got more");
}

TEST_CASE("pth: tensors that lie") {
  const std::string data(16, '\0');
  const auto w = [&](const std::string& offset, const std::string& sizes,
                     const std::string& strides) {
    return error_of(one("FloatStorage", 4, offset, sizes, strides, 4, data));
  };
  CHECK(w("K\0"s, "K\x02K\x02", "K\x02K\x01") == "");
  CHECK(w("K\x01", "K\x03", "K\x01") == "");
  CHECK(w("K\x01", "K\x04", "K\x01").find("expected a view within 4 elements") !=
        std::string::npos);
  CHECK(w("K\x05", "K\0"s, "K\x01").find("offset: expected 0..4, got 5") != std::string::npos);
  CHECK(w(integer(~0ull), "K\x01", "K\x01").find("offset: expected 0..4, got -1") !=
        std::string::npos);
  CHECK(w("K\0"s, "K\x02", integer(1ull << 62)).find("expected a view within") !=
        std::string::npos);
  CHECK(w("K\0"s, "K\x02", integer(~0ull)).find("strides: expected none negative") !=
        std::string::npos);
  CHECK(w("K\0"s, integer(~0ull), "K\x01") != "");
  CHECK(w("K\0"s, integer(1ull << 40) + integer(1ull << 40), "K\0K\0"s) != "");
  CHECK(w("K\0"s, "K\x01K\x01", "K\x01").find("strides: expected 2") != std::string::npos);
  CHECK(w("K\0"s, std::string(9, 'N'), "K\x01").find("expected integers, got None") !=
        std::string::npos);
  std::string nine;
  for (int i = 0; i < 9; ++i) nine += "K\x01";
  CHECK(w("K\0"s, nine, nine).find("dimensions: expected at most 8") != std::string::npos);

  const auto file = [&](const std::string& type, uint64_t elements, uint64_t stored,
                        const std::string& bytes) {
    return error_of(one(type, elements, "K\0"s, "K\x01", "K\x01", stored, bytes));
  };
  CHECK(file("FloatStorage", 4, 4, data.substr(1)) ==
        "storage \"0\": expected at most the 15 bytes that are left, got 4 elements of 4");
  CHECK(file("FloatStorage", 4, 3, data) ==
        "\"w\": expected a storage of 4 elements of 4 bytes, got 12 bytes");
  CHECK(file("FloatStorage", 1ull << 62, 1ull << 62, data).find("got 4611686018427387904") !=
        std::string::npos);
  CHECK(file("FloatStorage", ~0ull, ~0ull, data) != "");
  CHECK(file("ShortStorage", 4, 4, data).find("got \"torch.ShortStorage\"") != std::string::npos);
  CHECK(file("StrangeStorage", 4, 4, data) ==
        "storage \"0\": expected a tensor of a known type in it, got none");
  CHECK(file("BoolStorage", 2, 2, "\1\2") == "\"w\": expected bool bytes of 0 and 1");
  CHECK(error_of(stream(dict(tensor(storage("FloatStorage", "K\x01"), "K\0"s, "", "")))) ==
        "storage \"0\": expected it in the list of storages, got none");
  // The same storage of two types, and the same place for many storages.
  CHECK(error_of(stream("}(" + text("a") + tensor(storage("IntStorage", "K\x01"), "K\0"s, "", "") +
                            text("b") + tensor(storage("FloatStorage", "K\x01"), "K\0"s, "", "") +
                            "u",
                        "(" + text("0") + "l", number(1, 8) + "1234")) ==
        "\"b\": expected storage \"0\" to be of torch.IntStorage, got torch.FloatStorage");
}

TEST_CASE("pth: the stream form's frame") {
  CHECK(error_of(kMagic) == "expected 1 more bytes, got: the end of the file");
  CHECK(error_of("\x80\x02K\x01.") == "expected torch.save's magic number, got another pickle");
  CHECK(error_of(kMagic + "\x80\x02K\x01.") == "expected torch.save's protocol 1001, got another");
  std::string big = stream("}");
  big.replace(big.find("\x88s"), 1, "\x89");
  CHECK(error_of(big) == "expected little-endian elements, got others");
  CHECK(ends(error_of(stream("}")), "got a dictionary"));
  CHECK(ends(error_of(stream("N")), "got None"));
  CHECK(error_of(stream("}", "K\x01")) == "expected a list of storages, got something else");
  CHECK(error_of(stream("}", "(K\x01l")) != "");
}

TEST_CASE("pth: zip files of another kind") {
  if (!kHasZip) {
    CHECK(error_of_file(golden("zip.pth")).find("built with libzip") != std::string::npos);
    return;
  }
  CHECK(error_of_file(golden("compressed.pth")).find("got a compressed one") != std::string::npos);
  const std::string good = read_file(golden("zip.pth"));
  const auto edited = [&](const std::string& from, const std::string& to) {
    std::string bad = good;
    REQUIRE(from.size() == to.size());
    REQUIRE(bad.find(from) != std::string::npos);
    for (size_t at = bad.find(from); at != std::string::npos; at = bad.find(from, at + 1))
      bad.replace(at, from.size(), to);
    return error_of(bad);
  };
  CHECK(edited("data.pkl", "date.pkl") ==
        "expected an entry NAME/data.pkl, as torch.save writes it, got none");
  CHECK(edited("/data/0", "/data/x") == "expected an entry \"zip/data/0\", got none");
  CHECK(edited("little", "bitter") != "");  // the checksum
  CHECK(edited(number(0x3e800000, 4), number(0x3e800001, 4)).find("CRC") != std::string::npos);
  CHECK(error_of(good.substr(0, good.size() / 2)).find("expected a zip file, got") !=
        std::string::npos);
  CHECK(error_of("PK\x03\x04") != "");
  // More entries, and a larger directory, than there are.
  const size_t end = good.rfind("PK\x06\x06"s);
  REQUIRE(end != std::string::npos);
  for (const auto& [at, bytes] :
       {std::pair{24, 8}, {32, 8}, {24, 16}, {40, 8}, {48, 8}, {24, 32}}) {
    std::string bad = good;
    bad.replace(end + static_cast<size_t>(at), static_cast<size_t>(bytes),
                std::string(static_cast<size_t>(bytes), '\x7f'));
    CHECK(error_of(bad).find("expected a zip file, got") != std::string::npos);
  }
}

TEST_CASE("pth: a corrupt file loads or gives an Error") {
  std::mt19937 random(20);
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  const TemporaryFolder folder;
  const std::string tokens[] = {"(",
                                ")",
                                "t",
                                "R",
                                "Q",
                                "a",
                                "e",
                                "s",
                                "u",
                                "b",
                                "h\x01",
                                "q\x01",
                                "}",
                                "]",
                                "N",
                                ".",
                                "0",
                                "1",
                                "\x85",
                                "\x86",
                                "\x81",
                                "\xff",
                                number(~0ull >> 1, 8),
                                number(1ull << 40, 8)};
  for (const char* file : {"stream.pth", "stream4.pth", "zip.pth", "checkpoint.pth"}) {
    if (file[0] != 's' && !has_zip()) continue;
    const std::string good = read_file(golden(file));
    int64_t loaded = 0, refused = 0;
    const FuzzTrials trials(1000);
    for (int64_t trial = 0; trials.more(trial); ++trial) {
      std::string bad = good;
      for (size_t edits = 1 + below(3); edits > 0 && !bad.empty(); --edits) {
        const size_t at = below(bad.size());
        const std::string& token = tokens[below(std::size(tokens))];
        switch (below(6)) {
          case 0: bad[at] = static_cast<char>(below(256)); break;
          case 1: bad[at] ^= static_cast<char>(1 << below(8)); break;
          case 2: bad.replace(at, token.size(), token); break;
          case 3: bad.insert(at, token); break;
          case 4: bad.erase(at, 1 + below(8)); break;
          default:
            if (trial % 8 == 0) bad.resize(at);
        }
      }
      const std::string message = error_of_file(folder.write("bad", bad));
      ++(message.empty() ? loaded : refused);
    }
    CAPTURE(file);
    CHECK(loaded > 0);
    CHECK(refused > 100);
  }
}
