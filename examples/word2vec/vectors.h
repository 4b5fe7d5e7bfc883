// What the trained vectors are good for.
#pragma once
#include <string>
#include <vector>

#include "corpus.h"
#include "quern/tensor/tensor.h"

namespace word2vec {

/// Of length 1, so that products are cosines. [V, D] f32.
quern::Tensor normalized(const quern::Tensor& vectors);

struct Neighbour {
  int64_t word;
  double cosine;
};
/// The k words with the nearest vectors to that of `word`, the nearest first.
std::vector<Neighbour> neighbours(const quern::Tensor& normalized, int64_t word, int64_t k);

/// How many analogies are found: d is the word nearest to b - a + c but for a, b and c.
/// Mikolov et al., "Linguistic regularities in continuous space word representations", NAACL'13.
int64_t count_found(const quern::Tensor& normalized, const std::vector<Analogy>& analogies);

/// word2vec's text format: "V D", then a line a word, its name and its numbers. Errors: the
/// system's, after which an older file is as it was.
void save_text(const std::string& path, const Corpus& corpus, const quern::Tensor& vectors);
/// "vectors", and "words", the bytes of their names, each with a line end.
void save_tensors(const std::string& path, const Corpus& corpus, const quern::Tensor& vectors);

}  // namespace word2vec
