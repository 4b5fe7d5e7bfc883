#include "quern/optim/detail/idle_rows.h"

#include <algorithm>

#include "quern/tensor/parallel.h"
#include "quern/tensor/raw.h"

namespace quern::optim {

IdleRows::IdleRows(int64_t rows) : had_(zeros({rows}, DType::i64)) {}

void IdleRows::catch_up(const Tensor& param, std::span<Tensor> state, const Tensor& rows,
                        const Rounding& rounding) {
  constexpr int64_t kChunk = 4096;  // elements
  int64_t* const had = had_.out<int64_t>();
  const int64_t* const row = rows.defined() ? rows.data<int64_t>() : nullptr;
  const int64_t n = rows.defined() ? rows.numel() : had_.numel();
  const auto at = [=](int64_t i) { return row ? row[i] : i; };
  bool any = false;
  for (int64_t i = 0; i < n && !any; ++i) any = had[at(i)] < steps_;
  if (any) {
    const Tensor dense = raw::contiguous(param, param.format());
    for (Tensor& s : state)
      if (s.defined()) s = raw::contiguous(s, param.format());
    const int64_t width = param.numel() / param.size(0);
    // By chance once for all of them, as all would take the same words.
    const DType rounds_to = rounding ? state_dtype(param.dtype()) : param.dtype();
    const auto element = [](const Tensor& t, int64_t i) {
      return static_cast<std::byte*>(t.out_ptr()) + i * itemsize(t.dtype());
    };
    parallel_chunks(n, std::max<int64_t>(1, kChunk / std::max<int64_t>(1, width)),
                    [&](int64_t begin, int64_t end) {
                      for (int64_t i = begin; i < end; ++i) {
                        int64_t& until = had[at(i)];
                        if (until == steps_) continue;
                        kernels::UpdateSpan span{element(dense, at(i) * width), nullptr, {}, width};
                        for (size_t s = 0; s < state.size(); ++s)
                          if (state[s].defined()) span.state[s] = element(state[s], at(i) * width);
                        in_f32(param.dtype(), span, at(i) * width, rounding,
                               [&](const kernels::UpdateSpan& piece) {
                                 run(piece, static_cast<size_t>(until), static_cast<size_t>(steps_),
                                     rounds_to);
                               });
                        until = steps_;
                      }
                    });
    if (dense.is_same(param)) param.storage()->bump_version();
    else raw::copy_(param, dense);
  }
  if (!rows.defined()) restart();
}

int64_t IdleRows::behind() const {
  const int64_t* had = had_.data<int64_t>();
  return had_.numel() - std::count(had, had + had_.numel(), steps_);
}

void IdleRows::restart() noexcept {
  std::fill_n(had_.out<int64_t>(), had_.numel(), int64_t{0});
  steps_ = 0;
  forget();
}

void IdleRows::stepped(const Tensor& grad) noexcept {
  if (!grad.is_sparse()) return restart();
  ++steps_;
  const int64_t* row = grad.rows().data<int64_t>();
  for (int64_t i = 0; i < grad.rows().numel(); ++i) had_.out<int64_t>()[row[i]] = steps_;
}

}  // namespace quern::optim
