// One step's updates in one pass: all parameters cut into chunks of a fixed size, the chunks run on
// all threads. Elements do not meet, so neither chunks nor threads change a bit.
#pragma once
#include <vector>

#include "quern/ops/kernels/optim/update_kernel.h"
#include "quern/tensor/dtype.h"
#include "quern/tensor/parallel.h"
#include "quern/tensor/raw.h"
#include "quern/tensor/verbose.h"

namespace quern::optim {

/// What an update computes in, and keeps its state in: f32, or f64 for f64 parameters. State of
/// bf16 parameters is f32 too, because a buffer in bf16 would round small gradients away.
inline DType state_dtype(DType param) { return param == DType::f64 ? DType::f64 : DType::f32; }

template <class Step>
class UpdatePass {
 public:
  using Kernel = kernels::UpdateKernel<Step>;
  explicit UpdatePass(std::string_view name) : line_(name) {}

  /// Plans the update of `param` by its gradient. `state` becomes zeros where it is undefined, and
  /// is laid out as the parameter is.
  void add(const Kernel& kernel, const Step& step, const Tensor& param, std::span<Tensor> state) {
    const MemoryFormat format = param.format();
    const DType dtype = state_dtype(param.dtype());
    const Job job{&kernel, step, param, raw::contiguous(param, format),
                  raw::contiguous(raw::to(param.grad(), dtype), format)};
    for (Tensor& s : state)
      s = s.defined() ? raw::contiguous(s, format) : zeros(param.shape(), dtype, format);

    for (int64_t i = 0; i < param.numel(); i += kChunk) {
      const auto at = [i](const Tensor& t) {
        return static_cast<std::byte*>(t.out_ptr()) + i * itemsize(t.dtype());
      };
      kernels::UpdateSpan span{
          at(job.dense), at(job.grad), {}, std::min(kChunk, param.numel() - i)};
      for (size_t s = 0; s < state.size(); ++s) span.state[s] = at(state[s]);
      chunks_.push_back({jobs_.size(), span});
    }
    jobs_.push_back(job);
    bytes_ += 2 * param.nbytes() + job.grad.nbytes();
    for (const Tensor& s : state) bytes_ += 2 * s.nbytes();
  }

  /// Cannot fail, so that a step is whole or not at all.
  void run() {
    if (line_ && !jobs_.empty()) {
      line_.set(jobs_[0].kernel->name, fmt::format("{} parameters", jobs_.size()),
                std::string(to_string(jobs_[0].param.dtype())));
      line_.set_work(0, bytes_);
    }
    parallel_for(static_cast<int64_t>(chunks_.size()), [&](int64_t i) {
      const Chunk& chunk = chunks_[static_cast<size_t>(i)];
      const Job& job = jobs_[chunk.job];
      job.kernel->run(job.step, chunk.span);
    });
    for (const Job& job : jobs_) {
      if (job.dense.is_same(job.param)) job.param.storage()->bump_version();
      else raw::copy_(job.param, job.dense);
    }
  }

 private:
  // Elements: 64 KiB of f32 a stream, so that the four streams of AdamW lie in the smallest L2.
  static constexpr int64_t kChunk = 16384;

  struct Job {
    const Kernel* kernel;
    Step step;
    Tensor param;
    Tensor dense;  // the parameter itself, unless that is a strided view
    Tensor grad;   // in the order of `dense`
  };
  struct Chunk {
    size_t job;
    kernels::UpdateSpan span;
  };

  VerboseOp line_;
  int64_t bytes_ = 0;  // read and written
  std::vector<Job> jobs_;
  std::vector<Chunk> chunks_;
};

}  // namespace quern::optim
