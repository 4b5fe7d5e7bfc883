// Pictures that went wrong: every golden with bytes changed, cut out, doubled and swapped. Whatever
// they say, decoding ends with pixels of the size that the header gave, or with an Error that names
// the picture. `test_nn_files -tc="broken pictures*"` under asan;
// QUERN_FUZZ_SECONDS goes on for longer.
#include <doctest/doctest.h>

#include <random>

#include "nn/files/fuzz_trials.h"
#include "quern/nn/image_transform.h"
#include "quern/nn/safetensors.h"

using namespace quern;

namespace {

std::string mutate(std::string bytes, const std::string& other, std::mt19937_64& dice) {
  const auto below = [&](size_t n) { return static_cast<size_t>(dice() % std::max<size_t>(n, 1)); };
  for (size_t changes = 1 + below(6); changes > 0 && !bytes.empty(); --changes) {
    // Headers, which are at the start, matter most.
    const size_t at =
        below(2) == 0 ? below(std::min<size_t>(bytes.size(), 700)) : below(bytes.size());
    const size_t length = 1 + below(std::min<size_t>(bytes.size() - at, 16));
    switch (below(7)) {
      case 0: bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8))); break;
      case 1: bytes[at] = static_cast<char>(dice()); break;
      case 2: bytes[at] = below(2) == 0 ? '\xff' : '\0'; break;
      case 3: bytes.erase(at, length); break;
      case 4: bytes.insert(at, bytes.substr(below(bytes.size()), length)); break;
      case 5: bytes.replace(at, length, other.substr(below(other.size()), length)); break;
      default:
        if (below(8) == 0) bytes.resize(at);
    }
  }
  return bytes;
}

/// True if it decodes.
bool survives(const std::string& bytes, std::mt19937_64& dice) {
  try {
    const ImageDecoder picture(bytes, "mutant");
    REQUIRE(picture.height() * picture.width() <= int64_t{1} << 28);
    if (picture.height() * picture.width() > int64_t{1} << 22) return true;  // takes long
    RandomStream random(dice(), 1);
    const Tensor shown =
        decode_view(picture, random_resized_crop(picture.height(), picture.width(), 9, random));
    REQUIRE(shown.shape() == Shape{9, 9, 3});
    REQUIRE(picture.decode().shape() == Shape{picture.height(), picture.width(), 3});
    return true;
  } catch (const Error& error) {
    REQUIRE(std::string_view(error.what()).starts_with("[decode_image] mutant: expected"));
    return false;
  }
}

}  // namespace

TEST_CASE("broken pictures are decoded or refused") {
  std::vector<std::string> seeds;
  for (const auto& [name, tensor] : load_safetensors(QUERN_GOLDENS "/images.safetensors"))
    if (name.ends_with(".file"))
      seeds.emplace_back(reinterpret_cast<const char*>(tensor.data<uint8_t>()), tensor.numel());
  const FuzzTrials trials(4000);
  int64_t seed = 0, decoded = 0;
  for (; trials.more(seed); ++seed) {
    std::mt19937_64 dice(static_cast<uint64_t>(seed));
    CAPTURE(seed);
    const std::string& one = seeds[dice() % seeds.size()];
    decoded += survives(mutate(one, seeds[dice() % seeds.size()], dice), dice);
  }
  CHECK(decoded > seed / 20);  // else only the first bytes were tried
  CHECK(decoded < seed);
}
