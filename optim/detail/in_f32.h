// Updates compute in f32, or in f64 for f64. A parameter that is stored in bf16 or f16 is widened
// some elements at a time, which stay in L1, and rounded back.
#pragma once
#include <algorithm>
#include <optional>

#include "quern/ops/kernels/optim/update_kernel.h"
#include "quern/ops/kernels/round/by_chance.h"
#include "quern/tensor/convert.h"
#include "quern/tensor/dtype.h"
#include "quern/tensor/random.h"

namespace quern::optim {

/// What an update computes in, and keeps its state in. State of bf16 and f16 parameters is f32,
/// too, because a buffer in bf16 would round small gradients away.
inline DType state_dtype(DType param) { return accumulator(param); }

/// Which words of Philox rounding takes, and what rounds.
struct Draw {
  const kernels::ByChanceKernel* kernel;
  uint64_t seed, stream;
};
/// Of bf16 and f16: by chance; else to nearest.
using Rounding = std::optional<Draw>;

/// That of the slot's next step, or of what its idle rows do before it. Generators count their
/// streams from 0 and do not come to those of the upper half.
template <class Slot>
Rounding rounding_of(const Slot& slot, bool idle = false) {
  const DType dtype = slot.param.dtype();
  if (!slot.stochastic_rounding || dtype == state_dtype(dtype)) return {};
  const uint64_t step = uint64_t{idle} << 62 | slot.index << 40 | static_cast<uint64_t>(slot.steps);
  return Draw{&kernels::select_by_chance("stochastic_rounding", dtype), default_generator().seed(),
              uint64_t{1} << 63 | step};
}

inline void narrow(const float* wide, std::byte* stored, DType dtype, int64_t first, int64_t n,
                   const Rounding& rounding) {
  if (rounding) rounding->kernel->run({wide, stored, first, n, rounding->seed, rounding->stream});
  else
    quern::detail::convert_run(stored, dtype, reinterpret_cast<const std::byte*>(wide), DType::f32,
                               n);
}

/// f(piece, stored, at) on pieces of the span, in order, the parameter of each copied to S and not
/// written back; `stored` is where it came from, `at` the piece's place in the span.
template <class S, class F>
void each_copied_piece(DType param, const kernels::UpdateSpan& span, const F& f) {
  constexpr int64_t kPiece = 1024;
  alignas(64) S copy[kPiece];
  for (int64_t at = 0; at < span.n; at += kPiece) {
    kernels::UpdateSpan piece{copy, nullptr, {}, std::min(kPiece, span.n - at)};
    std::byte* const stored = static_cast<std::byte*>(span.param) + at * itemsize(param);
    quern::detail::convert_run(reinterpret_cast<std::byte*>(copy), dtype_of<S>, stored, param,
                               piece.n);
    if (span.grad) piece.grad = static_cast<const S*>(span.grad) + at;
    for (int s = 0; s < 2; ++s)
      if (span.state[s]) piece.state[s] = static_cast<S*>(span.state[s]) + at;
    f(piece, stored, at);
  }
}

/// Elements of f32 become what `dtype` (bf16 or f16) has nearest to them.
inline void round_to(DType dtype, float* x, int64_t n) {
  uint16_t stored[256];
  auto* const narrow = reinterpret_cast<std::byte*>(stored);
  for (int64_t at = 0; at < n; at += 256) {
    auto* const wide = reinterpret_cast<std::byte*>(x + at);
    const int64_t count = std::min<int64_t>(256, n - at);
    quern::detail::convert_run(narrow, dtype, wide, DType::f32, count);
    quern::detail::convert_run(wide, DType::f32, narrow, dtype, count);
  }
}

/// f on the span, or on pieces of it whose parameter is f32. `first`: the place of its first
/// element in the parameter.
template <class F>
void in_f32(DType param, const kernels::UpdateSpan& span, int64_t first, const Rounding& rounding,
            const F& f) {
  if (param == state_dtype(param)) return f(span);
  each_copied_piece<float>(param, span,
                           [&](const kernels::UpdateSpan& piece, std::byte* stored, int64_t at) {
                             f(piece);
                             narrow(static_cast<const float*>(piece.param), stored, param,
                                    first + at, piece.n, rounding);
                           });
}

}  // namespace quern::optim
