#include "quern/ops/detail/chain_strips.h"

#include <algorithm>
#include <cstring>

#include "quern/ops/kernels/blocking.h"
#include "quern/tensor/divide.h"
#include "quern/tensor/dtype.h"
#include "quern/tensor/parallel.h"
#include "quern/tensor/per_thread.h"

namespace quern::detail {
namespace {

using namespace kernels;

/// Rows of fewer outputs would be mostly those that strips share.
constexpr int64_t kFewestRows = 4;
/// Threads that are to have a strip each at least.
constexpr int64_t kBusyThreads = 8;

struct Rows {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};

bool is_depthwise(const ConvProblem& p) { return p.groups > 1 && p.groups == p.ic; }
bool is_pointwise(const ConvProblem& p) {
  return p.groups == 1 && p.kh == 1 && p.kw == 1 && p.pad_h == 0 && p.pad_w == 0;
}
/// Does each row of outputs read a row of the source?
bool reads_rows(const ConvProblem& p) { return p.dilation_h == 1 && p.pad_h < p.kh; }

int64_t row_bytes(const ConvProblem& p) { return p.ow * p.oc * itemsize(p.dtype); }

/// What these outputs read; if there are none, nothing after `end`.
Rows rows_read(const ConvProblem& p, Rows outputs, int64_t end) {
  if (outputs.size() <= 0) return {end, end};
  const int64_t first = outputs.begin * p.stride_h - p.pad_h;
  const int64_t last = (outputs.end - 1) * p.stride_h - p.pad_h + p.kh;
  return {std::max<int64_t>(first, 0), std::min(last, p.ih)};
}

/// The problem of these outputs and what they read: padded where the image ends.
ConvProblem of_rows(ConvProblem p, Rows read, Rows outputs) {
  p.pad_h = read.begin - (outputs.begin * p.stride_h - p.pad_h);
  p.ih = read.size(), p.oh = outputs.size();
  return p;
}

}  // namespace

ChainStrips::ChainStrips(std::span<const ConvProblem> stages)
    : stages_(stages.begin(), stages.end()),
      images_(stages[0].n),
      rows_(stages.back().oh),
      strip_rows_(rows_) {
  for (ConvProblem& p : stages_) p.n = 1;
  const bool suits = std::ranges::all_of(stages_, [](const ConvProblem& p) {
    return is_pointwise(p) || (is_depthwise(p) && reads_rows(p));
  });
  if (!suits || !std::ranges::any_of(stages_, is_depthwise)) return;
  if (stages.size() == 1 || bytes_held(rows_) <= cache::chain_strip()) return;
  if (bytes_held(1) > cache::l2()) return;
  // From as many as would fit if strips shared none.
  strip_rows_ = ceil_div(rows_ * cache::chain_strip(), bytes_held(rows_));
  while (strip_rows_ > 1 && bytes_held(strip_rows_) > cache::chain_strip()) --strip_rows_;
  const int64_t threads = num_threads(), share = ceil_div(threads, images_);  // of an image's
  const int64_t fit = ceil_div(rows_, strip_rows_), most = ceil_div(rows_, kFewestRows);
  const int64_t strips = std::max(fit, std::min(round_up(fit, share), most));
  if (images_ * strips < std::min(threads, kBusyThreads)) return;
  strip_rows_ = ceil_div(rows_, strips);
  strips_ = strips;
}

int64_t ChainStrips::rows_held(size_t i, int64_t rows) const {
  const ConvProblem& p = stages_[i];
  return std::min((rows - 1) * p.stride_h + p.kh, p.ih);
}

int64_t ChainStrips::bytes_held(int64_t rows) const {
  int64_t bytes = 0;
  for (size_t i = stages_.size() - 1; i > 0; --i) {
    rows = rows_held(i, rows);
    bytes += round_up(rows * row_bytes(stages_[i - 1]), 64);
  }
  return bytes;
}

/// A thread's way through its strips, which mostly follow each other.
class ChainStrips::Thread {
 public:
  void run(const ChainStrips& chain, int64_t strip, const std::byte* x, std::byte* y,
           std::byte* memory, Stage stage) {
    const CachedVector<ConvProblem>& stages = chain.stages_;
    const size_t last = stages.size() - 1;
    const int64_t image = strip / chain.strips_, i = strip % chain.strips_;
    // Longer ones first: a thread's first strip computes what the strip before has computed, too,
    // but for that of the image's first.
    const int64_t begin = ceil_div(i * chain.rows_, chain.strips_);
    links_.resize(stages.size());
    if (strip != next_ || begin == 0) std::ranges::fill(links_, Link{});
    next_ = strip + 1;

    // From the output to the source: which rows each stage computes.
    const Rows outputs{begin, ceil_div((i + 1) * chain.rows_, chain.strips_)};
    int64_t rows = chain.strip_rows_;  // of the longest strip
    links_[last] = {y + (image * chain.rows_ + begin) * row_bytes(stages[last]), outputs, outputs};
    for (size_t i = last; i > 0; --i) {
      Link& link = links_[i - 1];
      link.memory = memory;
      rows = chain.rows_held(i, rows);
      memory += round_up(rows * row_bytes(stages[i - 1]), 64);
      link.advance(rows_read(stages[i], links_[i].computed, link.held.end),
                   row_bytes(stages[i - 1]));
    }
    // From the source to the output.
    for (size_t i = 0; i <= last; ++i) {
      const ConvProblem& p = stages[i];
      const Link& to = links_[i];
      if (to.computed.size() <= 0) continue;
      const Rows read = rows_read(p, to.computed, 0);
      const std::byte* from =
          i == 0 ? x + (image * p.ih + read.begin) * p.iw * p.ic * itemsize(p.dtype)
                 : links_[i - 1].row(read.begin, row_bytes(stages[i - 1]));
      stage(i, of_rows(p, read, to.computed), from, to.row(to.computed.begin, row_bytes(p)),
            (image * p.oh + to.computed.begin) * p.ow * p.oc);
    }
  }

 private:
  /// What a stage writes: where, the rows that are there, and those of them that it computes now.
  struct Link {
    std::byte* memory = nullptr;
    Rows held, computed;

    std::byte* row(int64_t i, int64_t bytes) const { return memory + (i - held.begin) * bytes; }
    /// To the rows that are wanted now: those that it has move to the front.
    void advance(Rows wanted, int64_t bytes) {
      const int64_t kept = std::max<int64_t>(held.end - wanted.begin, 0);
      if (kept > 0)
        std::memmove(memory, row(wanted.begin, bytes), static_cast<size_t>(kept * bytes));
      held = wanted;
      computed = {wanted.begin + kept, wanted.end};
    }
  };

  CachedVector<Link> links_;  // one a stage
  int64_t next_ = -1;         // the strip for which they hold rows
};

void ChainStrips::run(const void* x, void* y, Stage stage) const {
  const PerThread<std::byte> memory(bytes_held(strip_rows_));
  CachedVector<Thread> threads(static_cast<size_t>(num_threads()));
  parallel_for(images_ * strips_, [&](int64_t strip) {
    threads[static_cast<size_t>(thread_index())].run(*this, strip, static_cast<const std::byte*>(x),
                                                     static_cast<std::byte*>(y), memory.get(),
                                                     stage);
  });
}

}  // namespace quern::detail
