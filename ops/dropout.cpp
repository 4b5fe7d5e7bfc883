#include "quern/ops/dropout.h"

#include <cmath>

#include "quern/autograd/node.h"
#include "quern/ops/kernels/accumulator.h"
#include "quern/tensor/parallel.h"
#include "quern/tensor/raw.h"
#include "quern/tensor/span.h"

namespace quern {
namespace {

constexpr int64_t kGrain = 1 << 14;  // a multiple of Philox's four words

/// keep[i] = 1 where word i of the stream is at least p·2³², else 0.
void draw_mask(uint8_t* keep, int64_t n, double p, uint64_t seed, uint64_t stream) {
  const auto threshold = static_cast<uint64_t>(std::ceil(std::ldexp(p, 32)));
  parallel_chunks(n, kGrain, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i += 4) {
      const auto words = philox4x32(static_cast<uint64_t>(i / 4), stream, seed);
      for (int64_t j = i; j < std::min(i + 4, end); ++j)
        keep[j] = words[static_cast<size_t>(j - i)] >= threshold;
    }
  });
}

/// y = x·keep·scale; zero, not NaN, where an infinite x is dropped.
template <class T>
void mask_run(T* y, const T* x, const uint8_t* keep, int64_t n, double scale) {
  using Compute = kernels::Accumulator<T>;
  const auto factor = static_cast<Compute>(scale);
  parallel_chunks(n, kGrain, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      y[i] = keep[i] ? static_cast<T>(static_cast<Compute>(x[i]) * factor) : T{};
  });
}

Tensor apply_mask(const Tensor& x, const Tensor& keep, double scale) {
  const Tensor dense = raw::contiguous(x, keep.format());
  Tensor y = empty(x.shape(), x.dtype(), keep.format());
  visit_floating("dropout", x.dtype(), [&]<class T>(std::type_identity<T>) {
    mask_run(y.out<T>(), dense.data<T>(), keep.data<uint8_t>(), x.numel(), scale);
  });
  return y;
}

}  // namespace

Tensor dropout(const Tensor& x, double p, bool training, Generator& generator) {
  check(x.defined() && is_floating(x.dtype()), "dropout", "x: expected a floating tensor, got {}",
        x);
  check(p >= 0 && p <= 1, "dropout", "p: expected 0..1, got {}", p);
  if (!training || p == 0) return x;

  const Span span("dropout");
  Tensor keep = empty(x.shape(), DType::u8);
  draw_mask(keep.out<uint8_t>(), x.numel(), p, generator.seed(), generator.next_stream());
  keep = raw::contiguous(keep, x.format());
  const double scale = 1 / (1 - p);  // infinite for p = 1, where nothing is kept

  return record("dropout", apply_mask(x, keep, scale), {x},
                [scale, keep = SavedTensor("dropout", keep)](const Tensor& dy, Needs) -> Tensors {
                  return {apply_mask(dy, keep.get(), scale)};
                });
}

}  // namespace quern
