#include "quern/autograd/accumulate.h"

#include "quern/tensor/cpu_features.h"
#include "quern/tensor/parallel.h"
#include "quern/tensor/raw.h"

namespace quern::detail {
namespace {

// A loop that compilers turn into vector code, on x86 into that of AVX2, too. The bits are the same.
template <class T>
[[gnu::always_inline]] inline void add_all(T* sum, const T* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    if constexpr (dtype_of<T> == DType::bf16) {
      sum[i] = bfloat16(static_cast<float>(sum[i]) + static_cast<float>(x[i]));
    } else {
      sum[i] += x[i];
    }
  }
}

#ifdef __x86_64__
template <class T>
[[gnu::target("avx2")]] void add_avx2(T* sum, const T* x, int64_t n) {
  add_all(sum, x, n);
}
#endif

template <class T>
void add_run(T* sum, const T* x, int64_t n) {
#ifdef __x86_64__
  static const bool has_avx2 = cpu_has(Isa::avx2);
  if (has_avx2) return add_avx2(sum, x, n);
#endif
  add_all(sum, x, n);
}

}  // namespace

bool solely_owned(const Tensor& t) {
  return t.identity().use_count() == 1 && t.storage().use_count() == 1;
}

Tensor owned(Tensor t, DType dtype, MemoryFormat format) {
  if (t.dtype() == dtype && t.is_dense_as(format) && solely_owned(t)) return t;
  Tensor copy = empty(t.shape(), dtype, format);
  raw::copy_(copy, t);
  return copy;
}

void add_(const Tensor& sum, const Tensor& t) {
  const Tensor x = raw::contiguous(raw::to(t, sum.dtype()), sum.format());
  visit_floating("backward", sum.dtype(), [&]<class T>(std::type_identity<T>) {
    T* const out = sum.out<T>();
    const T* const in = x.data<T>();
    parallel_chunks(sum.numel(), 1 << 15, [=](int64_t begin, int64_t end) {
      add_run(out + begin, in + begin, end - begin);
    });
  });
  sum.storage()->bump_version();
}

Tensor add(Tensor a, Tensor b) {
  const DType dtype = promote(a.dtype(), b.dtype());
  const auto reusable = [&](const Tensor& t) {
    return t.dtype() == dtype && t.is_dense_as(t.format()) && solely_owned(t);
  };
  if (!reusable(a) && reusable(b)) std::swap(a, b);
  const MemoryFormat format = a.format();
  Tensor sum = owned(std::move(a), dtype, format);
  add_(sum, b);
  return sum;
}

}  // namespace quern::detail
