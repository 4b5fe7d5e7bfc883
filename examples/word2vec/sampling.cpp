#include "sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace word2vec {
namespace {

constexpr uint64_t kOfEpochs = uint64_t{1} << 63;  // streams of which are none of steps

std::vector<double> of_negatives(const Corpus& corpus) {
  std::vector<double> weights;
  for (const int64_t count : corpus.counts)
    weights.push_back(std::pow(static_cast<double>(count), 0.75));
  return weights;
}

}  // namespace

AliasTable::AliasTable(const std::vector<double>& weights) {
  const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<size_t> small, large;
  for (size_t i = 0; i < weights.size(); ++i) {
    slots_.push_back(
        {weights[i] / all * static_cast<double>(weights.size()), static_cast<int64_t>(i)});
    (slots_[i].keep < 1 ? small : large).push_back(i);
  }
  while (!small.empty() && !large.empty()) {
    const size_t less = small.back(), more = large.back();
    small.pop_back();
    slots_[less].alias = static_cast<int64_t>(more);
    slots_[more].keep -= 1 - slots_[less].keep;
    if (slots_[more].keep >= 1) continue;
    large.pop_back();
    small.push_back(more);
  }
  for (const size_t i : small) slots_[i].keep = 1;  // but for rounding
}

int64_t AliasTable::draw(quern::RandomStream& random) const {
  const int64_t i = random.below(static_cast<int64_t>(slots_.size()));
  const Slot& slot = slots_[static_cast<size_t>(i)];
  return random.uniform(0, 1) < slot.keep ? i : slot.alias;
}

Sampler::Sampler(const Corpus& corpus, const SamplingOptions& options)
    : corpus_(corpus), options_(options), negatives_(of_negatives(corpus)) {}

int64_t Sampler::start_epoch(int64_t epoch) {
  std::vector<double> keep;
  for (const int64_t count : corpus_.counts) {
    const double rare =
        options_.subsample * static_cast<double>(corpus_.size) / static_cast<double>(count);
    keep.push_back(options_.subsample == 0 ? 1 : std::sqrt(rare) + rare);
  }
  quern::RandomStream random(options_.seed, kOfEpochs + static_cast<uint64_t>(epoch));
  kept_.clear();
  for (const int32_t word : corpus_.text)
    if (word == Corpus::kBreak || random.uniform(0, 1) < keep[static_cast<size_t>(word)])
      kept_.push_back(word);
  return (static_cast<int64_t>(kept_.size()) + options_.batch - 1) / options_.batch;
}

Sampler::Pairs Sampler::pairs(int64_t step, int64_t number) const {
  const auto all = static_cast<int64_t>(kept_.size());
  const auto vocabulary = static_cast<int64_t>(corpus_.words.size());
  const int64_t begin = step * options_.batch, end = std::min(all, begin + options_.batch);
  quern::RandomStream random(options_.seed, static_cast<uint64_t>(number));
  std::vector<int64_t> words, others, targets;
  const auto pair = [&](int64_t word, int64_t neighbour) {
    words.push_back(word);
    others.push_back(vocabulary + neighbour), targets.push_back(1);
    for (int64_t i = 0; i < options_.negative; ++i)
      others.push_back(vocabulary + negatives_.draw(random)), targets.push_back(0);
  };
  for (int64_t at = begin; at < end; ++at) {
    const int32_t word = kept_[static_cast<size_t>(at)];
    if (word == Corpus::kBreak) continue;
    const int64_t reach = 1 + random.below(options_.window);
    for (const int64_t side : {-1, 1})
      for (int64_t i = 1; i <= reach; ++i) {
        const int64_t place = at + side * i;
        const int32_t neighbour =
            place < 0 || place >= all ? Corpus::kBreak : kept_[static_cast<size_t>(place)];
        if (neighbour == Corpus::kBreak) break;
        pair(word, neighbour);
      }
  }
  const auto n = static_cast<int64_t>(words.size());
  return {quern::from_vector(words), quern::from_vector(others, {n, 1 + options_.negative}),
          quern::from_vector(targets)};
}

}  // namespace word2vec
