#include "corpus.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <numeric>
#include <sstream>
#include <unordered_map>

#include "quern/tensor/check.h"
#include "quern/tensor/random.h"
#include "sampling.h"

namespace word2vec {
namespace {

/// f(sentence) for each line's words.
template <class F>
void each_sentence(const std::string& path, const F& f) {
  std::ifstream file(path);
  quern::check(file.good(), "word2vec", "{}: expected a readable text", path);
  std::vector<std::string> words;
  for (std::string line; std::getline(file, line); words.clear()) {
    std::istringstream in(line);
    for (std::string word; in >> word;) words.push_back(word);
    f(words);
  }
  quern::check(!file.bad(), "word2vec", "{}: expected a readable text", path);
}

}  // namespace

Corpus read_corpus(const std::string& path, int64_t min_count) {
  std::unordered_map<std::string, int64_t> counts;
  each_sentence(path, [&](const auto& words) {
    for (const auto& word : words) ++counts[word];
  });
  std::vector<std::pair<int64_t, std::string>> kept;
  for (const auto& [word, count] : counts)
    if (count >= min_count) kept.emplace_back(-count, word);
  std::sort(kept.begin(), kept.end());
  quern::check(kept.size() >= 2 && kept.size() < (size_t{1} << 30), "word2vec",
               "{}: expected two words that are there {} times or more, got {}", path, min_count,
               kept.size());
  Corpus corpus;
  std::unordered_map<std::string, int32_t> numbers;
  for (const auto& [count, word] : kept) {
    numbers.emplace(word, static_cast<int32_t>(corpus.words.size()));
    corpus.words.push_back(word);
    corpus.counts.push_back(-count);
    corpus.size -= count;
  }
  each_sentence(path, [&](const auto& words) {
    for (const auto& word : words)
      if (const auto at = numbers.find(word); at != numbers.end())
        corpus.text.push_back(at->second);
    corpus.text.push_back(Corpus::kBreak);
  });
  return corpus;
}

Corpus planted_corpus(int64_t sentences, uint64_t seed) {
  constexpr int64_t kLands = 12, kKinds = 4, kTelling = 6, kOthers = 800;
  constexpr const char* kKind[kKinds] = {"land", "city", "river", "king"};
  Corpus corpus;
  const auto add = [&](std::string word) {
    corpus.words.push_back(std::move(word));
    return static_cast<int64_t>(corpus.words.size()) - 1;
  };
  const auto planted = [](int64_t land, int64_t kind) { return land * kKinds + kind; };
  for (int64_t land = 0; land < kLands; ++land)
    for (const char* kind : kKind) add(fmt::format("{}{}", kind, land));
  const int64_t of_land = planted(kLands, 0), of_kind = of_land + kLands * kTelling;
  for (int64_t i = 0; i < kLands * kTelling; ++i)
    add(fmt::format("of-land{}-{}", i / kTelling, i % kTelling));
  for (int64_t i = 0; i < kKinds * kTelling; ++i)
    add(fmt::format("of-{}-{}", kKind[i / kTelling], i % kTelling));
  const int64_t others = of_kind + kKinds * kTelling;
  std::vector<double> zipf;
  for (int64_t i = 0; i < kOthers; ++i) {
    add(fmt::format("word{}", i));
    zipf.push_back(1 / static_cast<double>(i + 1));
  }
  const AliasTable other(zipf);

  quern::RandomStream random(seed, 0);
  for (int64_t sentence = 0; sentence < sentences; ++sentence) {
    const int64_t land = random.below(kLands), kind = random.below(kKinds);
    for (int place = 0; place < 12; ++place) {
      const int64_t telling = random.below(kTelling), who = random.below(3);
      const int64_t word = place % 4 == 1 ? planted(land, kind)
                           : who == 0     ? of_land + land * kTelling + telling
                           : who == 1     ? of_kind + kind * kTelling + telling
                                          : others + other.draw(random);
      corpus.text.push_back(static_cast<int32_t>(word));
    }
    corpus.text.push_back(Corpus::kBreak);
  }

  // The most frequent first, as a text's.
  corpus.counts.assign(corpus.words.size(), 0);
  for (const int32_t word : corpus.text)
    if (word != Corpus::kBreak) ++corpus.counts[static_cast<size_t>(word)], ++corpus.size;
  std::vector<size_t> order(corpus.words.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return corpus.counts[a] > corpus.counts[b]; });
  std::vector<int32_t> place(order.size());
  Corpus sorted;
  for (size_t i = 0; i < order.size(); ++i) {
    place[order[i]] = static_cast<int32_t>(i);
    sorted.words.push_back(corpus.words[order[i]]);
    sorted.counts.push_back(corpus.counts[order[i]]);
  }
  for (const int32_t word : corpus.text)
    sorted.text.push_back(word == Corpus::kBreak ? word : place[static_cast<size_t>(word)]);
  sorted.size = corpus.size;
  const auto at = [&](int64_t land, int64_t kind) -> int64_t {
    return place[static_cast<size_t>(planted(land, kind))];
  };
  for (int64_t i = 0; i < kLands; ++i)
    for (int64_t j = 0; j < kLands; ++j)
      for (int64_t a = 0; a < kKinds; ++a)
        for (int64_t b = 0; b < kKinds; ++b)
          if (i != j && a != b)
            sorted.analogies.push_back({at(i, a), at(i, b), at(j, a), at(j, b)});
  return sorted;
}

}  // namespace word2vec
