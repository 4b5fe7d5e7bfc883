#include "quern/ops/pad.h"

#include "quern/autograd/node.h"
#include "quern/tensor/raw.h"
#include "quern/tensor/span.h"

namespace quern {

Tensor pad(const Tensor& x, const std::vector<int64_t>& padding, double value) {
  check(x.defined(), "pad", "x: expected a defined tensor, got undefined");
  const int pairs = static_cast<int>(padding.size() / 2);
  check(padding.size() % 2 == 0 && pairs <= x.dim(), "pad",
        "padding: expected up to {} pairs of sizes for {}, got {} sizes", x.dim(), x,
        padding.size());
  constexpr int64_t kMost = int64_t{1} << 60;  // keeps their sum in range
  Shape shape = x.shape();
  for (size_t i = 0; i < padding.size(); ++i) {
    check(padding[i] >= 0 && padding[i] <= kMost, "pad", "padding: expected sizes of 0..{}, got {}",
          kMost, padding[i]);
    shape[x.dim() - 1 - static_cast<int>(i / 2)] += padding[i];
  }

  const auto inner = [padding, shape = x.shape(), pairs](Tensor t) {
    for (int i = 0; i < pairs; ++i) {
      const int d = shape.size() - 1 - i;
      const int64_t before = padding[2 * static_cast<size_t>(i)];
      t = raw::slice(t, d, before, before + shape[d]);
    }
    return t;
  };
  const Span span("pad");
  Tensor y = full(shape, value, x.dtype(), x.format());
  raw::copy_(inner(y), x);
  if (!is_floating(x.dtype())) return y;

  return record(
      "pad", std::move(y), {x}, [inner](const Tensor& dy, Needs) -> Tensors { return {inner(dy)}; },
      GradDType::any);
}

}  // namespace quern
