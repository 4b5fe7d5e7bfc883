// word2vec: vectors of words from the words beside them. Skip-gram with negative sampling: Mikolov
// et al., "Distributed representations of words and phrases and their compositionality", NIPS'13.
//
// A word w has a vector v(w), and as a neighbour another one, u(w). A pair of neighbours (w, o),
// with k words n drawn at random, is to lower
//   -log σ(v(w)·u(o)) - Σ log σ(-v(w)·u(n))
// Both are rows of one table, v in its first half; each step changes those that it has met.
// Exit status: 0, 1 for a failure, 2 for a command line that makes no sense.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <new>
#include <optional>

#include "corpus.h"
#include "optimizer.h"
#include "quern/nn/embedding.h"
#include "quern/nn/file_replacement.h"
#include "quern/nn/row_table.h"
#include "quern/ops/binary.h"
#include "quern/ops/cat.h"
#include "quern/ops/loss.h"
#include "quern/ops/reshape.h"
#include "quern/ops/sum.h"
#include "quern/tensor/parallel.h"
#include "quern/tensor/raw.h"
#include "sampling.h"
#include "vectors.h"

namespace word2vec {
namespace {

using namespace quern;

struct Options {
  std::string text, table, save, save_text, optimizer = "adam";
  std::vector<std::string> neighbours;
  int64_t sentences = 20'000, min_count = 5, dim = 64, epochs = 3, flush_every = 200;
  std::optional<int64_t> steps;
  std::optional<double> lr;
  SamplingOptions sampling;
  int threads = 0;
};

/// Numbers of at least this; integers where the option is one.
CLI::Validator at_least(double least) {
  return {[=](const std::string& text) -> std::string {
            double value = 0;
            const bool ok =
                CLI::detail::lexical_cast(text, value) && value >= least && value < 9e15;
            return ok ? "" : fmt::format("expected a number of at least {}, got {}", least, text);
          },
          ""};
}

Options parse(int argc, char** argv) {
  Options o;
  std::vector<std::string> names;
  for (const NamedOptimizer& optimizer : optimizers()) names.push_back(optimizer.name);
  CLI::App app("Vectors of words from the words beside them, by skip-gram with negative sampling.",
               "word2vec");
  app.option_defaults()->always_capture_default();
  app.add_option("TEXT", o.text, "Words between spaces, sentences on lines [one that it makes up]");
  app.add_option("--sentences", o.sentences, "Of the text that it makes up")->check(at_least(1));
  app.add_option("--min-count", o.min_count, "Leave rarer words out")->check(at_least(1));
  app.add_option("--dim", o.dim, "Numbers of a vector")->check(at_least(1));
  app.add_option("--window", o.sampling.window, "Neighbours on either side, at most")
      ->check(at_least(1));
  app.add_option("--negative", o.sampling.negative, "Words drawn for a pair")->check(at_least(1));
  app.add_option("--subsample", o.sampling.subsample,
                 "Share of the text from which on a word is left out by chance; 0: none is")
      ->check(at_least(0));
  app.add_option("--epochs", o.epochs, "Times to go through the text")->check(at_least(1));
  app.add_option("--steps", o.steps, "Stop after so many steps")->check(at_least(0));
  app.add_option("--batch", o.sampling.batch, "Words of a step")->check(at_least(1));
  app.add_option("--optimizer", o.optimizer, "Optimizer")->check(CLI::IsMember(names));
  app.add_option("--lr", o.lr, "Rate of the first step, falling to 0 [one for the optimizer]")
      ->check(at_least(0));
  app.add_option("--seed", o.sampling.seed, "Of all that is drawn");
  app.add_option("--threads", o.threads, "Threads; 0: one a core. The vectors are the same")
      ->check(CLI::Range(0, 1024));
  app.add_option(
         "--table", o.table,
         "Keep vectors and the optimizer's state in this file, and go on from what is there")
      ->type_name("FILE");
  app.add_option("--flush-every", o.flush_every, "Steps between generations of --table")
      ->check(at_least(1));
  app.add_option("--neighbours", o.neighbours, "Words to show the nearest others of")
      ->delimiter(',');
  app.add_option("--save", o.save, "Write the vectors as safetensors")->type_name("FILE");
  app.add_option("--save-text", o.save_text, "Write them in word2vec's text format")
      ->type_name("FILE");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", app.help());
    std::exit(0);
  } catch (const CLI::ParseError& error) {
    fmt::print(stderr, "word2vec: error: {}\nSee word2vec --help.\n", error.what());
    std::exit(2);
  }
  return o;
}

/// v starts as small numbers and u as zeros, in parts that memory has room for.
void set_to_start(const Tensor& table, nn::RowTable* file, const Options& o) {
  constexpr int64_t kRows = 1 << 16;
  const int64_t words = table.size(0) / 2;
  const double most = 0.5 / static_cast<double>(o.dim);
  for (int64_t begin = 0; begin < words; begin += kRows) {
    Generator generator(o.sampling.seed, (uint64_t{1} << 62) + static_cast<uint64_t>(begin));
    uniform_(raw::slice(table, 0, begin, std::min(words, begin + kRows)), -most, most, generator);
    if (file) file->flush();
  }
}

/// Prints a line a second.
class Progress {
 public:
  Progress(int64_t words, int64_t epochs) : words_(words), epochs_(epochs) {}
  /// `share` of the epoch is done.
  void step(int64_t epoch, double share, double loss, int64_t pairs) {
    loss_ += loss, pairs_ += pairs;
    const double now = seconds(),
                 done = (static_cast<double>(epoch) + share) * static_cast<double>(words_);
    if (first_ < 0) first_ = done, at_first_ = last_ = now;
    else if (now - last_ >= 1 || (share == 1 && pairs_ > 0)) {
      fmt::print("epoch {}/{}  {:3.0f}%  loss {:.4f}  {:.0f} words/s\n", epoch + 1, epochs_,
                 100 * share, loss_ / static_cast<double>(pairs_),
                 (done - first_) / std::max(now - at_first_, 1e-9));
      std::fflush(stdout);
      last_ = now, loss_ = 0, pairs_ = 0;
    }
  }

 private:
  static double seconds() {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double>(now).count();
  }
  int64_t words_, epochs_, pairs_ = 0;
  double loss_ = 0, first_ = -1, at_first_ = 0, last_ = 0;
};

/// Σ of the loss over pairs.
Tensor loss_of(nn::Embedding& table, const Sampler::Pairs& pairs) {
  const Tensor scores = sum(unsqueeze(table(pairs.words), 1) * table(pairs.others), {2});
  const Tensor flat = reshape(scores, {-1, 1});  // of two classes, 0 and the score
  return cross_entropy(cat({zeros(flat.shape()), flat}, 1), pairs.targets, {}, -100,
                       Reduction::sum);
}

void train(const Options& o, const Corpus& corpus, nn::Embedding& table,
           optim::Optimizer& optimizer, nn::RowTable* file) {
  Sampler sampler(corpus, o.sampling);
  Progress progress(corpus.size, o.epochs);
  const int64_t done = file ? file->step() : 0;
  const double lr = optimizer.lr();
  int64_t step = 0;
  for (int64_t epoch = 0; epoch < o.epochs; ++epoch) {
    const int64_t steps = sampler.start_epoch(epoch);
    for (int64_t i = 0; i < steps; ++i, ++step) {
      if (o.steps && step >= *o.steps) break;
      if (step < done) continue;
      const double share = static_cast<double>(i) / static_cast<double>(steps);
      optimizer.set_lr(lr *
                       (1 - (static_cast<double>(epoch) + share) / static_cast<double>(o.epochs)));
      const Sampler::Pairs pairs = sampler.pairs(i, step);
      double loss = 0;
      if (pairs.words.numel() > 0) {
        if (file) file->fetch(cat({pairs.words, reshape(pairs.others, {-1})}));
        const Tensor value = loss_of(table, pairs);
        optimizer.zero_grad();
        value.backward();
        optimizer.step();
        loss = value.item();
      }
      progress.step(epoch, static_cast<double>(i + 1) / static_cast<double>(steps), loss,
                    pairs.words.numel());
      if (file && (step + 1) % o.flush_every == 0) file->flush(step + 1);
    }
  }
  if (file && step > done) file->flush(step);
}

void show(const Options& o, const Corpus& corpus, const Tensor& vectors) {
  const Tensor unit = normalized(vectors);
  if (!corpus.analogies.empty())
    fmt::print("analogies: {} of {} found\n", count_found(unit, corpus.analogies),
               corpus.analogies.size());
  auto shown = o.neighbours;
  if (shown.empty())
    shown.assign(corpus.words.begin(),
                 corpus.words.begin() + std::min<int64_t>(3, std::ssize(corpus.words)));
  for (const std::string& word : shown) {
    const auto at = std::find(corpus.words.begin(), corpus.words.end(), word);
    if (at == corpus.words.end()) {
      fmt::print("{}: not in the text, or too rare\n", word);
      continue;
    }
    fmt::print("{}:", word);
    for (const auto& [other, cosine] : neighbours(unit, at - corpus.words.begin(), 8))
      fmt::print(" {} {:.2f}", corpus.words[static_cast<size_t>(other)], cosine);
    fmt::print("\n");
  }
}

void run(const Options& o) {
  if (o.threads > 0) set_num_threads(o.threads);
  for (const std::string& path : {o.save, o.save_text})
    if (const std::string reason = path.empty() ? "" : why_not_replaceable(path); !reason.empty())
      fail("word2vec", fmt::format("{}: expected a writable file, got: {}", path, reason));
  const Corpus corpus = o.text.empty() ? planted_corpus(o.sentences, o.sampling.seed)
                                       : read_corpus(o.text, o.min_count);
  const auto words = static_cast<int64_t>(corpus.words.size());
  fmt::print("{} words, {} different ones\n", corpus.size, words);

  const NamedOptimizer& named = find_optimizer(o.optimizer);
  std::optional<nn::RowTable> file;
  if (!o.table.empty())
    file = nn::RowTable::open(o.table, {2 * words, o.dim, DType::f32, named.states});
  nn::Embedding table(file ? file->weight() : zeros({2 * words, o.dim}), {.sparse = true});
  const auto optimizer = named.make(table.parameters(), o.lr.value_or(named.lr));
  if (file && named.states > 0) optimizer->use_state(table.weight, file->state(), file->step());
  if (!file || file->step() == 0) set_to_start(table.weight, file ? &*file : nullptr, o);
  train(o, corpus, table, *optimizer, file ? &*file : nullptr);

  const Tensor vectors = raw::slice(table.weight.detach(), 0, 0, words);
  show(o, corpus, vectors);
  if (!o.save.empty()) save_tensors(o.save, corpus, vectors);
  if (!o.save_text.empty()) save_text(o.save_text, corpus, vectors);
}

}  // namespace
}  // namespace word2vec

int main(int argc, char** argv) {
  const word2vec::Options options = word2vec::parse(argc, argv);
  try {
    word2vec::run(options);
    return 0;
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "word2vec: error: [memory] expected more of it: the system has no more\n");
  } catch (const std::exception& error) {
    fmt::print(stderr, "word2vec: error: {}\n", error.what());
  }
  return 1;
}
