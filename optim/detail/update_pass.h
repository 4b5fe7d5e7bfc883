// One step's updates in one pass: all parameters, or of those with a row-sparse gradient the rows
// it has, cut into chunks of a fixed size, the chunks run on all threads. Elements do not meet, so
// neither chunks nor threads change a bit.
#pragma once
#include <algorithm>
#include <vector>

#include "quern/optim/detail/in_f32.h"
#include "quern/optim/optimizer.h"
#include "quern/tensor/dtype.h"
#include "quern/tensor/parallel.h"
#include "quern/tensor/raw.h"
#include "quern/tensor/verbose.h"

namespace quern::optim {

template <class Step>
class UpdatePass {
 public:
  using Kernel = kernels::UpdateKernel<Step>;
  explicit UpdatePass(std::string_view name) : line_(name) {}

  /// Plans the update of an Optimizer::Slot's parameter by its gradient: of all its elements, or
  /// where that is row-sparse of the rows it has, no other being read or written.
  /// The first `states` of its states become `initial` where they are undefined,
  /// and are laid out as the parameter is.
  template <class Slot>
  void add(const Kernel& kernel, const Step& step, Slot& slot, size_t states,
           const Initial& initial = {}) {
    const Tensor& param = slot.param;
    const std::span<Tensor> state(slot.state, states);
    const MemoryFormat format = param.format();
    const DType dtype = state_dtype(param.dtype());
    const Tensor grad = param.grad();
    Job job{.kernel = &kernel,
            .step = step,
            .param = param,
            .dense = raw::contiguous(param, format),
            .grad = {},
            .rows = {},
            .state = {},
            .states = states,
            .width = param.dim() == 0 ? 1 : param.numel() / std::max<int64_t>(1, param.size(0)),
            .rounding = rounding_of(slot)};
    if (grad.is_sparse()) {
      job.rows = grad.rows();
      job.grad = raw::contiguous(raw::to(grad.values(), dtype));
    } else {
      job.grad = raw::contiguous(raw::to(grad, dtype), format);
    }
    for (size_t s = 0; s < state.size(); ++s) {
      state[s] = state[s].defined() ? raw::contiguous(state[s], format)
                                    : full(param.shape(), initial[s], dtype, format);
      job.state[s] = state[s];
    }

    // Rows that are not too long stay whole: sums by chunks are then the same of all rows by number
    // as of the dense parameter.
    const int64_t rows = std::max<int64_t>(1, kChunk / std::max<int64_t>(1, job.width));
    const int64_t parts = job.rows.defined() ? job.rows.numel() : param.numel();
    const int64_t chunk = job.rows.defined()   ? rows
                          : job.width > kChunk ? kChunk
                                               : std::max<int64_t>(1, rows * job.width);
    for (int64_t i = 0; i < parts; i += chunk)
      chunks_.push_back({jobs_.size(), i, std::min(chunk, parts - i)});
    const int64_t touched = job.grad.numel();
    bytes_ += touched * (2 * itemsize(param.dtype()) + itemsize(dtype)) +
              2 * touched * itemsize(dtype) * static_cast<int64_t>(state.size());
    jobs_.push_back(std::move(job));
  }

  /// Cannot fail, so that a step is whole or not at all.
  void run() {
    if (line_ && !jobs_.empty()) {
      line_.set(jobs_[0].kernel->name, fmt::format("{} parameters", jobs_.size()),
                std::string(to_string(jobs_[0].param.dtype())));
      line_.set_work(0, bytes_);
    }
    each_span([](const Job& job, size_t, const kernels::UpdateSpan& span, int64_t first) {
      in_f32(job.param.dtype(), span, first, job.rounding,
             [&](const kernels::UpdateSpan& piece) { job.kernel->run(job.step, piece); });
    });
    for (const Job& job : jobs_) {
      if (job.dense.is_same(job.param)) job.param.storage()->bump_version();
      else raw::copy_(job.param, job.dense);
    }
  }

  // What a rule of several passes goes by.

  struct Job;
  struct Chunk {
    size_t job;
    int64_t begin, count;  // elements, or rows of a row-sparse gradient
  };
  std::span<Job> jobs() { return jobs_; }
  std::span<const Chunk> chunks() const { return chunks_; }
  /// f(job, chunk, span, first) on the elements of each chunk, or on each of its rows, on all
  /// threads; `first` is the place in the parameter of the first element of the span.
  template <class F>
  void each_span(const F& f) const {
    parallel_for(static_cast<int64_t>(chunks_.size()), [&](int64_t i) {
      const auto c = static_cast<size_t>(i);
      const auto& [index, begin, count] = chunks_[c];
      const Job& job = jobs_[index];
      if (job.rows.defined()) each_row(job, c, begin, begin + count, f);
      else f(job, c, job.span(begin, begin, count), begin);
    });
  }

 private:
  // Elements: 64 KiB of f32 a stream, so that the four streams of AdamW lie in the smallest L2.
  static constexpr int64_t kChunk = 16384;

  /// Fetches the lines of a few rows further on, which no hardware prefetcher could know.
  template <class F>
  static void each_row(const Job& job, size_t chunk, int64_t begin, int64_t end, const F& f) {
    constexpr int64_t kAhead = 6;
    const Tensor& rows = job.rows;
    const int64_t* row = rows.data<int64_t>();
    const auto fetch = [&](const void* p, int64_t bytes) {
      for (int64_t at = 0; at < std::min<int64_t>(bytes, 2048); at += 64)
        __builtin_prefetch(static_cast<const std::byte*>(p) + at, 1, 2);
    };
    for (int64_t i = begin; i < end; ++i) {
      if (i + kAhead < end) {
        const auto next = job.span(row[i + kAhead] * job.width, 0, job.width);
        fetch(next.param, job.width * itemsize(job.dense.dtype()));
        for (size_t s = 0; s < job.states; ++s)
          fetch(next.state[s], job.width * itemsize(job.grad.dtype()));
      }
      const int64_t first = row[i] * job.width;
      f(job, chunk, job.span(first, i * job.width, job.width), first);
    }
  }

  VerboseOp line_;
  int64_t bytes_ = 0;  // read and written
  std::vector<Job> jobs_;
  std::vector<Chunk> chunks_;
};

template <class Step>
struct UpdatePass<Step>::Job {
  const Kernel* kernel;
  Step step;
  Tensor param;
  Tensor dense;     // the parameter itself, unless that is a strided view
  Tensor grad;      // in the order of `dense`, or of a row-sparse gradient the rows it has
  Tensor rows;      // which these are; else undefined
  Tensor state[2];  // in the order of `dense`
  size_t states;
  int64_t width;  // elements of a row
  Rounding rounding;

  /// n elements from `at` on; their gradient's begin at grad_at.
  kernels::UpdateSpan span(int64_t at, int64_t grad_at, int64_t n) const {
    const auto element = [](const Tensor& t, int64_t i) {
      return static_cast<std::byte*>(t.out_ptr()) + i * itemsize(t.dtype());
    };
    kernels::UpdateSpan span{element(dense, at), element(grad, grad_at), {}, n};
    for (size_t s = 0; s < states; ++s) span.state[s] = element(state[s], at);
    return span;
  }
};

}  // namespace quern::optim
