// word2vec finds what is planted, gives the same vectors however it is run, and refuses the rest.
#include <doctest/doctest.h>
#include <fmt/core.h>

#include <cmath>
#include <sstream>
#include <vector>

#include "examples/program.h"
#include "quern/nn/safetensors.h"
#include "word2vec/sampling.h"

using namespace quern;
using namespace quern::testing;

namespace {

Run train(const std::string& args) { return run(QUERN_WORD2VEC " " + args); }
bool has(const std::string& text, const std::string& part) {
  const bool found = text.find(part) != std::string::npos;
  if (!found) MESSAGE(text);
  return found;
}

}  // namespace

TEST_CASE("word2vec: the analogies that are planted are found again") {
  const Run result = train(
      "--sentences 4000 --dim 24 --epochs 2 --batch 256 --optimizer sgd"
      " --neighbours city3,nowhere");
  REQUIRE(result.status == 0);
  CHECK(has(result.out, "48000 words"));
  CHECK(has(result.out, "words/s"));
  CHECK(has(result.out, "city3: of-land3-"));
  CHECK(has(result.out, "nowhere: not in the text"));
  int found = 0, all = 0;
  const size_t at = result.out.find("analogies: ");
  REQUIRE(at != std::string::npos);
  REQUIRE(std::sscanf(result.out.c_str() + at, "analogies: %d of %d", &found, &all) == 2);
  CHECK(all == 12 * 11 * 4 * 3);
  CHECK(found >= all * 95 / 100);
}

TEST_CASE("word2vec: the vectors are the same on any number of threads, and in a table") {
  const TemporaryFolder folder;
  const std::string args = "--sentences 400 --dim 20 --batch 200 --epochs 2 ";
  for (const std::string optimizer : {"adam", "sgd", "adagrad"}) {
    const std::string by = args + "--optimizer " + optimizer;
    const auto text = [&](const std::string& more) {
      const Run result = train(by + more + " --save-text " + (folder / "text"));
      CHECK(result.status == 0);
      CHECK(result.err == "");
      return folder.read("text");
    };
    const std::string straight = text(" --threads 1 --save " + (folder / "tensors"));
    CHECK(text(" --threads 3") == straight);
    // Stopped, and gone on; the last steps until a flush are done again.
    const std::string table = " --flush-every 5 --table " + (folder / optimizer);
    CHECK(text(table + " --steps 13") != straight);
    CHECK(text(table) == straight);
    CHECK(text(table) == straight);  // nothing is left to do

    std::istringstream in(straight);
    int64_t words = 0, width = 0, lines = 0;
    in >> words >> width;
    const TensorDict saved = load_safetensors(folder / "tensors");
    const auto vectors = saved.at("vectors").to_vector<float>();
    CHECK(saved.at("vectors").shape() == Shape{words, width});
    CHECK(width == 20);
    std::string names;
    bool same = true;
    for (std::string word; in >> word; ++lines) {
      names += word + '\n';
      for (int64_t i = 0; i < width; ++i) {
        float x = NAN;
        in >> x;
        same &= x == vectors[static_cast<size_t>(lines * width + i)];
      }
    }
    CHECK(same);
    CHECK(lines == words);
    const auto bytes = saved.at("words").to_vector<uint8_t>();
    CHECK(std::string(bytes.begin(), bytes.end()) == names);
  }
}

TEST_CASE("word2vec: killed again and again, a table comes to the vectors of a straight run") {
  const TemporaryFolder folder;
  const std::string options = "--sentences 1500 --dim 32 --batch 128 --flush-every 10 --save-text ";
  CHECK(train(options + (folder / "straight")).status == 0);
  const std::string again = options + (folder / "text") + " --table " + (folder / "t");
  int kills = 0;
  for (; kills < 100; ++kills) {  // each may stay a little longer
    const std::string seconds = fmt::format("{:.3f}", 0.08 + 0.02 * kills);
    if (run("timeout -s KILL " + seconds + " " QUERN_WORD2VEC " " + again).status == 0) break;
  }
  CHECK(kills > 0);
  CHECK(folder.read("text") == folder.read("straight"));
}

TEST_CASE("word2vec: every optimizer trains on a text") {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 60; ++i) text += "the cat sat on the mat\na dog sat on a log\n\n";
  folder.write("text", text + "rare words\n");
  const std::string options =
      (folder / "text") + " --min-count 5 --dim 8 --subsample 0 --batch 100";
  for (const char* name : {"sgd", "momentum", "adam", "adamw", "adamax", "nadam", "radam", "lamb",
                           "adagrad", "adadelta", "rmsprop", "asgd", "rprop"}) {
    CAPTURE(name);
    const Run result = train(options + " --optimizer " + name);
    CHECK(result.status == 0);
    CHECK(has(result.out, "720 words, 8 different ones"));
    CHECK_FALSE(result.out.find("nan") != std::string::npos);
  }
}

TEST_CASE("word2vec: what makes no sense is refused") {
  const TemporaryFolder folder;
  for (const auto& [args, message] :
       std::vector<std::pair<std::string, std::string>>{{"--dim 0", "--dim"},
                                                        {"--lr nan", "--lr"},
                                                        {"--epochs -1", "--epochs"},
                                                        {"--optimizer newton", "--optimizer"},
                                                        {"--unknown", "--unknown"}}) {
    const Run result = train(args);
    CHECK(result.status == 2);
    CHECK(has(result.err, message));
    CHECK(has(result.err, "--help"));
  }
  const auto refused = [](const std::string& args, const std::string& message) {
    const Run result = train(args);
    CHECK(result.status == 1);
    CHECK(has(result.err, message));
  };
  refused("/no/such/text", "/no/such/text: expected a readable text");
  refused(folder.write("text", "word\n"), "expected two words that are there 5 times or more");
  refused("--sentences 10 --save /no/such/file", "/no/such/file: expected a writable file");
  const std::string small = "--sentences 10 --steps 1 --dim 4 --table " + (folder / "t");
  CHECK(train(small).status == 0);
  refused(small + " --optimizer sgd", "with 0 states, got");
}

TEST_CASE("word2vec: an alias table draws by its weights") {
  const std::vector<double> weights{1, 10, 0, 3, 2, 0.5, 0.01, 4};
  double all = 0;
  for (const double weight : weights) all += weight;
  const word2vec::AliasTable table(weights);
  RandomStream random(1, 2);
  constexpr int kDraws = 200'000;
  std::vector<double> counts(weights.size());
  for (int i = 0; i < kDraws; ++i) ++counts[static_cast<size_t>(table.draw(random))];
  for (size_t i = 0; i < weights.size(); ++i) {
    const double p = weights[i] / all, sigma = std::sqrt(kDraws * p * (1 - p));
    CHECK(std::abs(counts[i] - kDraws * p) <= 5 * sigma);
  }
}
