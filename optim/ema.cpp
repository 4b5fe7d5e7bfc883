#include "quern/optim/ema.h"

#include "quern/optim/detail/update_pass.h"
#include "quern/tensor/parallel.h"
#include "quern/tensor/raw.h"

namespace quern::optim {
namespace {

constexpr int64_t kChunk = 16384;

template <class T>
void average(T* a, const T* x, int64_t n, double decay) {
  const T take = static_cast<T>(1 - decay);
  parallel_chunks(n, kChunk, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) a[i] += take * (x[i] - a[i]);
  });
}

}  // namespace

ModelEma::ModelEma(const TensorDict& state, double decay) : decay_(decay) {
  check(decay >= 0 && decay <= 1, "model_ema", "decay: expected 0..1, got {}", decay);
  for (const auto& [name, tensor] : state) {
    const Tensor copy = raw::clone(tensor);
    averages_.insert(name,
                     is_floating(copy.dtype()) ? raw::to(copy, state_dtype(copy.dtype())) : copy);
  }
}

void ModelEma::update(const TensorDict& state) {
  for (const auto& [name, a] : averages_) {
    const Tensor& x = state.at(name);
    check(x.shape() == a.shape(), "model_ema", "{}: expected {}, got {}", name, a.shape(), x);
    if (!is_floating(a.dtype())) {
      raw::copy_(a, x);
      continue;
    }
    const Tensor same = raw::contiguous(raw::to(x, a.dtype()), a.format());
    if (a.dtype() == DType::f64) average(a.out<double>(), same.data<double>(), a.numel(), decay_);
    else average(a.out<float>(), same.data<float>(), a.numel(), decay_);
    a.storage()->bump_version();
  }
}

void ModelEma::load(const TensorDict& averages) {
  for (const auto& [name, a] : averages_) {
    const Tensor* from = averages.find(name);
    check(from != nullptr && from->shape() == a.shape() && from->dtype() == a.dtype(), "model_ema",
          "{}: expected {}, got {}", name, a, from == nullptr ? "none" : from->describe());
  }
  check(averages.size() == averages_.size(), "model_ema", "averages: expected {}, got {}",
        averages_.size(), averages.size());
  for (const auto& [name, a] : averages_) raw::copy_(a, averages.at(name));
}

}  // namespace quern::optim
