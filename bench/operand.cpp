#include "operand.h"

#include <algorithm>

#include "quern/tensor/parallel.h"

#ifdef __x86_64__
#include <emmintrin.h>
#endif

namespace quern::bench {

Operand::Operand(DType dtype, int64_t count)
    : dtype_(dtype), count_(count), storage_(std::max<int64_t>(1, count * itemsize(dtype))) {}

double Operand::operator[](int64_t i) const {
  return visit_dtype(dtype_, [&]<class T>(std::type_identity<T>) {
    return static_cast<double>(*static_cast<const T*>(at(i)));
  });
}

/// f(random number) an element, from a seed a chunk.
template <class F>
void Operand::generate(F f) {
  visit_dtype(dtype_, [&]<class T>(std::type_identity<T>) {
    T* data = static_cast<T*>(this->data());
    parallel_chunks(count_, int64_t{1} << 16, [&](int64_t begin, int64_t end) {
      auto next = f(static_cast<uint32_t>(begin >> 16));
      for (int64_t i = begin; i < end; ++i) data[i] = static_cast<T>(next());
    });
  });
}

void Operand::fill_integers(uint32_t seed) {
  generate([seed](uint32_t chunk) {
    return [random = Random(seed * 7919 + chunk)]() mutable {
      return static_cast<float>(random.below(5) - 2);
    };
  });
}

void Operand::fill_uniform(uint32_t seed) {
  generate([seed](uint32_t chunk) {
    return [random = Random(seed * 7919 + chunk)]() mutable {
      return 0.1f + 0.9f * 0x1p-32f * static_cast<float>(random() >> 1) * 2;
    };
  });
}

void Operand::fill(double value) {
  generate([value](uint32_t) { return [value] { return static_cast<float>(value); }; });
}

void Operand::evict() const {
  constexpr int64_t kLine = 64;
#ifdef __x86_64__
  for (int64_t i = 0; i < bytes(); i += kLine) _mm_clflush(storage_.data() + i);
  _mm_mfence();
#else
  // No instruction for it: read more than any cache holds.
  static const Operand sweep(DType::u8, int64_t{256} << 20);
  for (int64_t i = 0; i < sweep.bytes(); i += kLine)
    static_cast<volatile std::byte*>(sweep.data() + i)[0];
#endif
}

double unit_roundoff(DType dtype) {
  switch (dtype) {
    case DType::f64: return 0x1p-53;
    case DType::bf16: return 0x1p-8;
    case DType::f16: return 0x1p-11;
    default: return 0x1p-24;
  }
}

double rounded(DType dtype, double value) {
  const float single = static_cast<float>(value);
  if (dtype == DType::bf16) return static_cast<float>(bfloat16(single));
  if (dtype == DType::f16) return static_cast<float>(float16(value));
  return dtype == DType::f32 ? single : value;
}

}  // namespace quern::bench
