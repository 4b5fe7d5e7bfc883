#include "quern/nn/by_slab.h"

#include <algorithm>

#include "quern/autograd/grad_mode.h"
#include "quern/ops/autocast.h"
#include "quern/tensor/cpu_features.h"
#include "quern/tensor/divide.h"
#include "quern/tensor/raw.h"
#include "quern/tensor/storage.h"
#include "quern/tensor/tasks.h"

namespace quern::nn {
namespace {

/// Of fewer images, small products and calls would weigh too much: on 16 threads slabs of 2 take
/// 1.2 times as long as those of 4 (EfficientNet-B0 in bf16).
constexpr int64_t kFewest = 4;

/// Where L3 does not hold the weights, so that they come from memory for each slab: twice as many,
/// unless threads would be left without one.
int64_t fewest(const Module& network, int64_t images) {
  if (network.parameter_bytes() <= cache_sizes().l3) return kFewest;
  return std::clamp(images / num_threads(), kFewest, 2 * kFewest);
}

/// Images whose activations stay between L2 and a share of L3.
int64_t slab_of(const Module& network, const Tensor& x, int64_t widest) {
  const bool lowered = autocast_enabled() && x.dtype() == DType::f32;
  const int64_t item = itemsize(lowered ? DType::bf16 : x.dtype());
  const int64_t image = std::max<int64_t>(widest * x.size(2) * x.size(3) * item, 1);
  return std::max<int64_t>(4 * cache_sizes().l2 / image, fewest(network, x.size(0)));
}

}  // namespace

Tensor by_slab(const Module& network, const Tensor& x, int64_t widest,
               FunctionRef<Tensor(const Tensor&)> f) {
  const bool images = x.defined() && x.dim() == 4;
  if (!images || x.size(0) <= kFewest || grad_enabled() || network.any_training()) return f(x);
  const int64_t n = x.size(0), count = ceil_div(n, slab_of(network, x, widest));
  if (count <= 1) return f(x);

  const auto first = [&](int64_t slab) { return n * slab / count; };
  CachedVector<Tensor> results(static_cast<size_t>(count));
  const auto run = [&, caller = detail::thread_mode()](int64_t slab) {
    const detail::ThreadModeGuard mode(caller);
    results[static_cast<size_t>(slab)] = f(raw::slice(x, 0, first(slab), first(slab + 1)));
  };
  with_tasks([&](Tasks& beside) {
    for (int64_t slab = 0; slab < count; ++slab) beside.run([&run, slab] { run(slab); });
  });

  Shape shape = results[0].shape();
  shape[0] = n;
  const Tensor all = empty(shape, results[0].dtype(), results[0].format());
  for (int64_t slab = 0; slab < count; ++slab)
    raw::copy_(raw::slice(all, 0, first(slab), first(slab + 1)),
               results[static_cast<size_t>(slab)]);
  return all;
}

}  // namespace quern::nn
