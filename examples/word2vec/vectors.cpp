#include "vectors.h"

#include <fmt/core.h>

#include "quern/nn/file_replacement.h"
#include "quern/nn/safetensors.h"
#include "quern/ops/binary.h"
#include "quern/ops/embedding.h"
#include "quern/ops/matmul.h"
#include "quern/ops/sum.h"
#include "quern/ops/topk.h"
#include "quern/ops/unary.h"
#include "quern/tensor/raw.h"

namespace word2vec {

using namespace quern;

Tensor normalized(const Tensor& vectors) {
  return vectors / (sqrt(sum(vectors * vectors, {1}, true)) + 1e-12);
}

std::vector<Neighbour> neighbours(const Tensor& normalized, int64_t word, int64_t k) {
  const Tensor cosines = matmul(normalized, raw::select(normalized, 0, word));
  const auto [values, indices] = topk(cosines, std::min(k + 1, cosines.numel()));
  std::vector<Neighbour> found;
  for (int64_t i = 0; i < values.numel(); ++i)
    if (const int64_t other = indices.data<int64_t>()[i]; other != word)
      found.push_back({other, values.data<float>()[i]});
  found.resize(std::min(found.size(), static_cast<size_t>(k)));
  return found;
}

int64_t count_found(const Tensor& normalized, const std::vector<Analogy>& analogies) {
  if (analogies.empty()) return 0;
  std::vector<int64_t> a, b, c;
  for (const Analogy& words : analogies)
    a.push_back(words[0]), b.push_back(words[1]), c.push_back(words[2]);
  const auto rows = [&](const std::vector<int64_t>& words) {
    return embedding(from_vector(words), normalized);
  };
  const Tensor cosines = matmul(rows(b) - rows(a) + rows(c), raw::transpose(normalized, 0, 1));
  const auto best = topk(cosines, std::min<int64_t>(4, cosines.size(1))).indices;
  int64_t found = 0;
  for (size_t i = 0; i < analogies.size(); ++i) {
    const int64_t* word = best.data<int64_t>() + static_cast<int64_t>(i) * best.size(1);
    while (*word == a[i] || *word == b[i] || *word == c[i]) ++word;  // of four, one is none of them
    found += *word == analogies[i][3];
  }
  return found;
}

void save_text(const std::string& path, const Corpus& corpus, const Tensor& vectors) {
  FileReplacement file("word2vec", path);
  const int64_t width = vectors.size(1);
  std::string text = fmt::format("{} {}\n", corpus.words.size(), width);
  const Tensor dense = raw::contiguous(vectors);
  const float* x = dense.data<float>();
  for (const std::string& word : corpus.words) {
    text += word;
    for (int64_t i = 0; i < width; ++i) text += fmt::format(" {}", *x++);
    text += '\n';
    file.write(text.data(), std::ssize(text));
    text.clear();
  }
  file.commit();
}

void save_tensors(const std::string& path, const Corpus& corpus, const Tensor& vectors) {
  std::vector<uint8_t> names;
  for (const std::string& word : corpus.words) {
    names.insert(names.end(), word.begin(), word.end());
    names.push_back('\n');
  }
  save_safetensors(path, {{"vectors", vectors}, {"words", from_vector(names)}});
}

}  // namespace word2vec
