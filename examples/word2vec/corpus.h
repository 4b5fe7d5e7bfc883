// A text as numbers of words, and the words.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace word2vec {

/// a is to b as c is to d: numbers of words.
using Analogy = std::array<int64_t, 4>;

struct Corpus {
  std::vector<std::string> words;  // the most frequent first
  std::vector<int64_t> counts;     // of each, in the text
  std::vector<int32_t> text;       // numbers of words; kBreak between sentences
  std::vector<Analogy> analogies;  // that are planted in it
  int64_t size = 0;                // words of the text

  static constexpr int32_t kBreak = -1;
};

/// Words between white space, sentences between ends of lines. Words that are there less than
/// `min_count` times are left out. Errors: unreadable; less than two words left.
Corpus read_corpus(const std::string& path, int64_t min_count);

/// Sentences of words drawn by Zipf's law, in which twelve lands have a word of each of four kinds
/// (land3, city3, river3, king3), which stands beside words that tell of the land and words that
/// tell of the kind. So what differs between city3 and land3 also differs between city7 and land7.
Corpus planted_corpus(int64_t sentences, uint64_t seed);

}  // namespace word2vec
