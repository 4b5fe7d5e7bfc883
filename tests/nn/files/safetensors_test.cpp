#include "quern/nn/safetensors.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "nn/files/fuzz_trials.h"
#include "quern/tensor/random.h"
#include "quern/tensor/raw.h"
#include "temporary_folder.h"

using namespace quern;
using quern::testing::TemporaryFolder;

namespace {

std::string little_endian(uint64_t value) {
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &value, 8);
  return bytes;
}

std::string file_of(const std::string& header, const std::string& data = "") {
  return little_endian(header.size()) + header + data;
}

/// A header with one tensor "w".
std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"w":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets +
         "}}";
}

/// The message of the error that loading these bytes gives; "" if they load.
std::string error_of(const std::string& bytes) {
  TemporaryFolder folder;
  std::string path = folder.write("hostile", bytes);
  try {
    load_safetensors(path);
  } catch (const Error& error) {
    std::string message = error.what(), prefix = "[load_safetensors] " + path + ": ";
    REQUIRE(message.starts_with(prefix));  // every message names the file
    return message.substr(prefix.size());
  }
  return "";
}

/// Equal dtype, shape and bits, in logical order.
bool same(const Tensor& a, const Tensor& b) {
  if (a.dtype() != b.dtype() || a.shape() != b.shape()) return false;
  Tensor x = raw::contiguous(a), y = raw::contiguous(b);
  return std::memcmp(x.data_ptr(), y.data_ptr(), static_cast<size_t>(x.nbytes())) == 0;
}

}  // namespace

TEST_CASE("safetensors: every dtype, and shapes from scalars to empty ones, round trip in order") {
  TemporaryFolder folder;
  constexpr DType dtypes[] = {DType::f32, DType::f64, DType::bf16, DType::f16,
                              DType::i64, DType::i32, DType::u8,   DType::boolean};
  TensorDict saved;
  for (DType dtype : dtypes)
    for (const Shape& shape :
         {Shape{}, Shape{0}, Shape{3}, Shape{2, 0, 5}, Shape{2, 3, 1, 1, 2, 1, 1, 3}}) {
      Tensor values = is_floating(dtype)
                          ? randn(shape, dtype)
                          : randint(0, dtype == DType::boolean ? 2 : 200, shape, dtype);
      saved.insert(fmt::format("{}{}", dtype, shape), values);
    }
  Metadata metadata = {{"format", "pt"}, {"quoted \"\\\n", "für 磨"}};
  save_safetensors(folder / "f", saved, metadata);

  TensorDict loaded = load_safetensors(folder / "f");
  REQUIRE(loaded.size() == saved.size());
  for (auto a = saved.begin(), b = loaded.begin(); a != saved.end(); ++a, ++b) {
    CAPTURE(a->first);
    CHECK(a->first == b->first);
    CHECK(same(a->second, b->second));
  }
  CHECK(load_safetensors_metadata(folder / "f") == metadata);
  CHECK(folder.count() == 1);
}

TEST_CASE("safetensors: the written bytes") {
  TemporaryFolder folder;
  save_safetensors(folder / "f", {{"a", full({2}, 1.0)}, {"b", full({}, 7, DType::u8)}});
  std::string header = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                       R"("b":{"dtype":"U8","shape":[],"data_offsets":[8,9]}})";
  header.append((8 - header.size() % 8) % 8, ' ');
  using namespace std::string_literals;
  CHECK(folder.read("f") == file_of(header, "\0\0\x80\x3f\0\0\x80\x3f\x07"s));

  save_safetensors(folder / "empty", {});
  CHECK(folder.read("empty") == file_of("{}      "));
  CHECK(load_safetensors(folder / "empty").empty());
}

TEST_CASE("safetensors: any strides are saved in logical order") {
  TemporaryFolder folder;
  Tensor dense = randn({2, 3, 4, 5});
  Tensor channels_last = raw::contiguous(dense, MemoryFormat::channels_last);
  REQUIRE(channels_last.format() == MemoryFormat::channels_last);
  Tensor sliced = raw::slice(dense, 3, 1, 5, 2), permuted = raw::permute(dense, {3, 1, 0, 2});
  Tensor expanded = raw::expand(raw::slice(dense, 0, 1, 2), {3, 3, 4, 5});
  TensorDict saved = {{"dense", dense},
                      {"channels_last", channels_last},
                      {"sliced", sliced},
                      {"permuted", permuted},
                      {"expanded", expanded}};
  save_safetensors(folder / "f", saved);
  TensorDict loaded = load_safetensors(folder / "f");
  for (const auto& [name, tensor] : saved) {
    CAPTURE(name);
    CHECK(same(loaded.at(name), tensor));
    CHECK(loaded.at(name).is_dense_as(MemoryFormat::contiguous));
  }
  CHECK(same(loaded.at("channels_last"), loaded.at("dense")));
}

TEST_CASE("safetensors: all 65536 halves are read as they are, and written") {
  std::string data;
  for (int bits = 0; bits < 65536; ++bits)
    data += {static_cast<char>(bits & 255), static_cast<char>(bits >> 8)};
  TemporaryFolder folder;
  std::string path = folder.write("f", file_of(one("F16", "[65536]", "[0,131072]"), data));
  const Tensor halves = load_safetensors(path).at("w");
  REQUIRE(halves.dtype() == DType::f16);
  REQUIRE(std::memcmp(halves.data_ptr(), data.data(), data.size()) == 0);
  save_safetensors(path, {{"w", halves}});
  const Tensor again = load_safetensors(path).at("w");
  REQUIRE(again.dtype() == DType::f16);
  CHECK(std::memcmp(again.data_ptr(), data.data(), data.size()) == 0);
  const Tensor t = raw::to(halves, DType::f32);
  int wrong = 0;
  for (int bits = 0; bits < 65536; ++bits) {
    int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    double magnitude = exponent == 31  ? (mantissa ? NAN : INFINITY)
                       : exponent == 0 ? std::ldexp(mantissa, -24)
                                       : std::ldexp(1024 + mantissa, exponent - 25);
    float got = t.data<float>()[bits];
    bool equal =
        std::isnan(magnitude) ? std::isnan(got) : std::fabs(got) == static_cast<float>(magnitude);
    wrong += !equal || std::signbit(got) != (bits >= 0x8000);
  }
  CHECK(wrong == 0);
}

TEST_CASE("safetensors: what the format allows") {
  using namespace std::string_literals;
  // Data in another order than the header; spaces after the header, and within it.
  std::string swapped = R"({ "b" : {"data_offsets":[1,3],"shape":[2],"dtype":"U8"},)"
                        R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]} }   )";
  TemporaryFolder folder;
  TensorDict dict = load_safetensors(folder.write("swapped", file_of(swapped, "\1\2\3")));
  CHECK(dict.begin()->first == "b");
  CHECK(dict.at("b").to_vector<int>() == std::vector{2, 3});
  CHECK(dict.at("a").to_vector<int>() == std::vector{1});

  CHECK(error_of(file_of(R"({"__metadata__":{}})")) == "");
  CHECK(error_of(file_of(one("F32", "[]", "[0,4]"), "\0\0\0\0"s)) == "");
  CHECK(error_of(file_of(one("F32", "[0]", "[0,0]"))) == "");
  CHECK(error_of(file_of(one("F32", "[3,0,7]", "[0,0]"))) == "");
  CHECK(error_of(file_of(one("BOOL", "[2]", "[0,2]"), "\0\1"s)) == "");
}

TEST_CASE("safetensors: files that cannot be read") {
  TemporaryFolder folder;
  auto load = [](const std::string& path) { load_safetensors(path); };
  std::string missing = folder / "missing", pipe = folder / "pipe";
  CHECK_THROWS_WITH_AS(load(missing),
                       ("[load_safetensors] " + missing +
                        ": expected a readable file, got: No such file or directory")
                           .c_str(),
                       Error);
  std::string directory = folder / "";
  CHECK_THROWS_WITH_AS(
      load(directory),
      ("[load_safetensors] " + directory + ": expected a regular file, got another kind").c_str(),
      Error);
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK_THROWS_AS(load(pipe), Error);
  CHECK_THROWS_AS(load("/dev/zero"), Error);
}

TEST_CASE("safetensors: a file that ends before its size tells so, whatever failed before") {
  const std::string path = "/sys/devices/system/cpu/possible";  // some 4 bytes, of 4096
  std::error_code missing;
  if (std::filesystem::file_size(path, missing) < 8 || missing) {
    MESSAGE("skipped: no such file here");
    return;
  }
  errno = EACCES;
  CHECK_THROWS_WITH_AS(
      load_safetensors(path),
      ("[load_safetensors] " + path + ": expected 8 more bytes, got: the end of the file").c_str(),
      Error);
}

TEST_CASE("safetensors: lengths that lie") {
  CHECK(error_of("") == "expected 8 bytes of header length, got a file of 0");
  CHECK(error_of("1234567") == "expected 8 bytes of header length, got a file of 7");
  CHECK(error_of(little_endian(3) + "{}") == "expected a header of 3 bytes, got a file of 10");
  CHECK(error_of(little_endian(100'000'000) + "{}") ==
        "expected a header of 100000000 bytes, got a file of 10");
  CHECK(error_of(little_endian(100'000'001) + "{}") ==
        "expected a header of at most 100000000 bytes, got 100000001");
  CHECK(error_of(little_endian(~0ull) + "{}") ==
        "expected a header of at most 100000000 bytes, got 18446744073709551615");
  std::string header = one("F32", "[2]", "[0,8]");
  CHECK(error_of(file_of(header, "1234567")) == "expected 8 bytes of data after the header, got 7");
  CHECK(error_of(file_of(header, "123456789")) ==
        "expected 8 bytes of data after the header, got 9");
  CHECK(error_of(file_of(header)) == "expected 8 bytes of data after the header, got 0");
  CHECK(error_of(file_of(one("F32", "[1099511627776]", "[0,4398046511104]"), "1234")) ==
        "expected 4398046511104 bytes of data after the header, got 4");
}

TEST_CASE("safetensors: headers that are not JSON") {
  CHECK(error_of(file_of("")) == "header: expected it to start with {");
  CHECK(error_of(file_of(" {}")) == "header: expected it to start with {");
  CHECK(error_of(file_of("\xef\xbb\xbf{}")) == "header: expected it to start with {");
  CHECK(error_of(file_of("[]")) == "header: expected it to start with {");
  CHECK(error_of(file_of("{")).starts_with("header: expected JSON, got an error at byte"));
  CHECK(error_of(file_of("{}{}")).starts_with("header: expected JSON"));
  CHECK(error_of(file_of("{} x")).starts_with("header: expected JSON"));
  CHECK(error_of(file_of(R"({"w":})")).starts_with("header: expected JSON"));
  CHECK(
      error_of(file_of("{\"\xff\":{}}")).starts_with("header: expected JSON"));  // no UTF-8 at all
  CHECK(error_of(file_of("{\"\xc0\xaf\":{}}")).starts_with("header: expected JSON"));  // overlong
  CHECK(error_of(file_of("{\"\xed\xa0\x80\":{}}"))
            .starts_with("header: expected JSON"));  // surrogate
  CHECK(error_of(file_of(R"({"\ud800":{}})")).starts_with("header: expected JSON"));
  CHECK(error_of(file_of(std::string("{\"a\0\":{}}", 9))).starts_with("header: expected JSON"));
  CHECK(error_of(file_of(R"({"w":1e999})")).starts_with("header: expected JSON"));
}

TEST_CASE("safetensors: headers of another form") {
  CHECK(error_of(file_of(R"({"w":1})")) == "\"w\": expected an object, got 1");
  CHECK(error_of(file_of(R"({"w":null})")) == "\"w\": expected an object, got null");
  CHECK(error_of(file_of(R"({"w":[]})")) == "\"w\": expected an object, got [");
  CHECK(error_of(file_of(R"({"w":{}})")) ==
        "\"w\": expected dtype, shape and data_offsets, each once, got }");
  CHECK(error_of(file_of(R"({"w":{"dtype":"U8","shape":[]}})")) ==
        "\"w\": expected dtype, shape and data_offsets, each once, got }");
  CHECK(error_of(file_of(R"({"w":{"dtype":"U8","dtype":"U8"}})")) ==
        "\"w\": expected dtype, shape and data_offsets, each once, got \"dtype\"");
  CHECK(error_of(file_of(R"({"w":{"colour":"red"}})")) ==
        "\"w\": expected dtype, shape and data_offsets, each once, got \"colour\"");
  std::string w = R"("w":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  CHECK(error_of(file_of("{" + w + "," + w + "}")) == "\"w\": expected a new name, got it again");
  CHECK(error_of(file_of(R"({"__metadata__":{},"__metadata__":{}})")) ==
        "\"__metadata__\": expected a new name, got it again");
  CHECK(error_of(file_of(R"({"__metadata__":{"a":1}})")) ==
        "\"__metadata__\": expected a string, got 1");
  CHECK(error_of(file_of(R"({"__metadata__":{"a":{}}})")) ==
        "\"__metadata__\": expected a string, got {");
  CHECK(error_of(file_of(R"({"__metadata__":{"a":"","a":""}})")) ==
        "\"__metadata__\": expected keys that differ, got \"a\" again");
  CHECK(error_of(file_of(R"({"__metadata__":[]})")) ==
        "\"__metadata__\": expected an object, got [");
  // Depth costs nothing: the first bracket too many ends it.
  CHECK(error_of(file_of(R"({"w":{"shape":)" + std::string(1 << 20, '['))) ==
        "\"w\": expected shape to hold up to 8 sizes from 0 to 2^63-1, got [");
  CHECK(error_of(file_of(R"({"__metadata__":{"a":)" + std::string(1 << 20, '['))) ==
        "\"__metadata__\": expected a string, got [");
  // A terminal must not obey a name, nor drown in it.
  CHECK(error_of(file_of(R"({"\u001b[31m":1})")) == "\"\\u001b[31m\": expected an object, got 1");
  CHECK(error_of(file_of("{\"" + std::string(1 << 20, 'x') + "\":1}")).size() < 150);
}

TEST_CASE("safetensors: dtypes, shapes and offsets that do not hold") {
  std::string dtypes = "\"w\": expected dtype F32, F64, BF16, F16, I64, I32, U8 or BOOL, got ";
  CHECK(error_of(file_of(one("F8_E4M3", "[0]", "[0,0]"))) == dtypes + "\"F8_E4M3\"");
  CHECK(error_of(file_of(one("f32", "[0]", "[0,0]"))) == dtypes + "\"f32\"");
  CHECK(error_of(file_of(R"({"w":{"dtype":5}})")) == dtypes + "5");

  std::string sizes = "\"w\": expected shape to hold up to 8 sizes from 0 to 2^63-1, got ";
  CHECK(error_of(file_of(one("U8", "[-1]", "[0,0]"))) == sizes + "-1");
  CHECK(error_of(file_of(one("U8", "[1.0]", "[0,1]"), "x")) == sizes + "\"1.0\"");
  CHECK(error_of(file_of(one("U8", "[1e0]", "[0,1]"), "x")) == sizes + "\"1e0\"");
  CHECK(error_of(file_of(one("U8", "[\"1\"]", "[0,1]"), "x")) == sizes + "\"1\"");
  CHECK(error_of(file_of(one("U8", "[true]", "[0,1]"), "x")) == sizes + "true");
  CHECK(error_of(file_of(one("U8", "[9223372036854775808]", "[0,0]"))) ==
        sizes + "9223372036854775808");
  CHECK(error_of(file_of(one("U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]"), "x")) ==
        sizes + "more than 8 sizes");
  CHECK(error_of(file_of(one("U8", "5", "[0,5]"), "12345")) ==
        "\"w\": expected shape to be an array, got 5");

  std::string offsets = "\"w\": expected data_offsets to be two integers";
  CHECK(error_of(file_of(one("U8", "[0]", "[]"))) == offsets + " from 0 to 2^63-1, got ]");
  CHECK(error_of(file_of(one("U8", "[0]", "[0]"))) == offsets + " from 0 to 2^63-1, got ]");
  CHECK(error_of(file_of(one("U8", "[0]", "[0,0,0]"))) == offsets + ", got 0");
  CHECK(error_of(file_of(one("U8", "[1]", "[-1,0]"))) == offsets + " from 0 to 2^63-1, got -1");
  CHECK(error_of(file_of(one("U8", "[1]", "[0,1.5]"))) ==
        offsets + " from 0 to 2^63-1, got \"1.5\"");
  CHECK(error_of(file_of(one("U8", "[1]", "[0,18446744073709551616]"))) ==
        offsets + " from 0 to 2^63-1, got \"18446744073709551616\"");

  CHECK(error_of(file_of(one("F32", "[2]", "[0,4]"), "1234")) ==
        "\"w\": expected data_offsets 8 bytes apart (F32 [2]), got [0,4]");
  CHECK(error_of(file_of(one("U8", "[1]", "[1,0]"), "1")) ==
        "\"w\": expected data_offsets 1 bytes apart (U8 [1]), got [1,0]");
  CHECK(error_of(file_of(one("U8", "[9223372036854775807]", "[9223372036854775807,0]"))) ==
        "\"w\": expected data_offsets 9223372036854775807 bytes apart (U8 [9223372036854775807]), "
        "got [9223372036854775807,0]");
  CHECK(error_of(file_of(one("U8", "[1]", "[1,2]"), "12")) ==
        "\"w\": expected data_offsets to start at 0, got 1 (gap)");
  // 2^62 elements of 4 bytes, and 2^32·2^32 of one, are 0 in 64 bits.
  CHECK(error_of(file_of(one("F32", "[4611686018427387904]", "[0,0]"))) ==
        "\"w\": expected a shape whose bytes fit 63 bits, got [4611686018427387904]");
  CHECK(error_of(file_of(one("U8", "[4294967296,4294967296]", "[0,0]"))) ==
        "\"w\": expected a shape whose bytes fit 63 bits, got [4294967296,4294967296]");
  CHECK(error_of(file_of(one("U8", "[4294967296,4294967296,0]", "[0,0]"))) ==
        "\"w\": expected a shape whose bytes fit 63 bits, got [4294967296,4294967296,0]");

  auto two = [](const char* a, const char* b) {
    return fmt::format(R"({{"a":{{"dtype":"U8","shape":[2],"data_offsets":{}}},)"
                       R"("b":{{"dtype":"U8","shape":[2],"data_offsets":{}}}}})",
                       a, b);
  };
  CHECK(error_of(file_of(two("[0,2]", "[2,4]"), "1234")) == "");
  CHECK(error_of(file_of(two("[0,2]", "[1,3]"), "123")) ==
        "\"b\": expected data_offsets to start at 2, got 1 (overlap)");
  CHECK(error_of(file_of(two("[0,2]", "[0,2]"), "12")) ==
        "\"b\": expected data_offsets to start at 2, got 0 (overlap)");
  CHECK(error_of(file_of(two("[3,5]", "[0,2]"), "12345")) ==
        "\"a\": expected data_offsets to start at 2, got 3 (gap)");
  CHECK(error_of(file_of(one("BOOL", "[2]", "[0,2]"), "\1\2")) ==
        "\"w\": expected BOOL bytes of 0 and 1");
}

TEST_CASE("safetensors: a corrupt file loads or gives an Error") {
  TemporaryFolder folder;
  save_safetensors(folder / "f",
                   {{"weight", randn({3, 4})},
                    {"bias", rand({3}, DType::bf16)},
                    {"steps", full({}, 7, DType::i64)},
                    {"mask", zeros({5}, DType::boolean)}},
                   {{"format", "pt"}});
  const std::string good = folder.read("f");
  std::mt19937 random(20);
  auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  const std::string tokens[] = {"[", "]",  "{",    "}",  "\"",
                                ",", "-",  "0",    "9",  "99999999999999999999",
                                ".", "e9", "\xff", "F16"};
  int64_t loaded = 0, refused = 0;
  const FuzzTrials trials(2000);
  for (int64_t trial = 0; trials.more(trial); ++trial) {
    std::string bad = good;
    for (size_t edits = 1 + below(3); edits > 0 && !bad.empty(); --edits) {
      size_t at = trial % 2 ? below(bad.size()) : below(std::min<size_t>(bad.size(), 300));
      switch (below(5)) {
        case 0: bad[at] = static_cast<char>(below(256)); break;
        case 1: bad.resize(at); break;
        case 2: bad.insert(at, tokens[below(std::size(tokens))]); break;
        case 3: bad.erase(at, 1 + below(8)); break;
        default: bad.replace(at, 1, tokens[below(std::size(tokens))]);
      }
    }
    if (trial % 3 == 0 && bad.size() >= 8)  // keep the length honest, to get past it
      bad.replace(0, 8, little_endian(std::min(bad.size() - 8, good.find('}') + below(200))));
    try {
      load_safetensors(folder.write("bad", bad));
      ++loaded;
    } catch (const Error& error) {
      CHECK(std::string(error.what()).starts_with("[load_safetensors] " + folder / "bad" + ": "));
      ++refused;
    }
  }
  CHECK(loaded > 0);  // flips among the data
  CHECK(refused > 500);
}

TEST_CASE("save_safetensors replaces an older file, and leaves its neighbours alone") {
  TemporaryFolder folder;
  for (const char* neighbour : {"f.tmp", "f.0.tmp", "f~"}) folder.write(neighbour, neighbour);
  save_safetensors(folder / "f", {{"old", ones({400})}});
  Tensor t = randn({3});
  save_safetensors(folder / "f", {{"new", t}});
  TensorDict loaded = load_safetensors(folder / "f");
  CHECK(loaded.size() == 1);
  CHECK(same(loaded.at("new"), t));
  for (const char* neighbour : {"f.tmp", "f.0.tmp", "f~"})
    CHECK(folder.read(neighbour) == neighbour);
  CHECK(folder.count() == 4);
}
