// What a step of training is about: words, their neighbours, and words drawn at random.
#pragma once
#include <cstdint>
#include <vector>

#include "corpus.h"
#include "quern/tensor/random.h"
#include "quern/tensor/tensor.h"

namespace word2vec {

/// Draws numbers with given weights, in constant time: each of n equal slots holds a number and the
/// one that tops it up. Vose, "A linear algorithm for generating random numbers with a given
/// distribution", 1991.
class AliasTable {
 public:
  explicit AliasTable(const std::vector<double>& weights);
  int64_t draw(quern::RandomStream& random) const;

 private:
  struct Slot {
    double keep;  // the chance of the slot's own number
    int64_t alias;
  };
  std::vector<Slot> slots_;
};

struct SamplingOptions {
  int64_t window = 5, negative = 5, batch = 1024;
  double subsample = 1e-3;  // 0: none
  uint64_t seed = 0;
};

/// Skip-gram with negative sampling, as in word2vec.c: frequent words are left out by chance before
/// windows are laid, a window is of 1..window words on either side, and negatives are drawn by
/// count^0.75. All by the numbers of steps and epochs, so that a step can be done again.
class Sampler {
 public:
  Sampler(const Corpus& corpus, const SamplingOptions& options);

  /// Leaves words out anew. Returns how many steps it then takes to go through the text.
  int64_t start_epoch(int64_t epoch);
  struct Pairs {
    quern::Tensor words;    // i64 [n]
    quern::Tensor others;   // i64 [n, 1 + negative]: a neighbour, and words drawn; rows from V on
    quern::Tensor targets;  // i64 [n·(1 + negative)]: 1 for neighbours, 0
  };
  /// The pairs of the epoch's step-th batch of words; `number` counts steps through all epochs.
  Pairs pairs(int64_t step, int64_t number) const;

 private:
  const Corpus& corpus_;
  SamplingOptions options_;
  AliasTable negatives_;
  std::vector<int32_t> kept_;  // of the text, in this epoch
};

}  // namespace word2vec
