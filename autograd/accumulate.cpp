#include "quern/autograd/accumulate.h"

#include <algorithm>

#include "quern/tensor/cpu_features.h"
#include "quern/tensor/loops.h"
#include "quern/tensor/parallel.h"
#include "quern/tensor/raw.h"

namespace quern::detail {
namespace {

// A loop that compilers turn into vector code, on x86 into that of AVX2, too.
// The bits are the same.
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
using AddRun = void (*)(T* sum, const T* x, int64_t n);
/// The best one.
template <class T>
AddRun<T> add_run() {
#ifdef __x86_64__
  if (isa_enabled(Isa::avx2)) return add_avx2<T>;
#endif
  return [](T* sum, const T* x, int64_t n) { add_all(sum, x, n); };
}

/// sum[rows[i], :] += values[i, :], as the elements lie in memory; `out` and `in` are dense.
template <class T>
void add_rows(T* out, const T* in, const int64_t* rows, int64_t n, int64_t width) {
  const AddRun<T> add = add_run<T>();
  parallel_chunks(n, std::max<int64_t>(1, (1 << 15) / std::max<int64_t>(1, width)),
                  [=](int64_t begin, int64_t end) {
                    for (int64_t i = begin; i < end; ++i)
                      add(out + rows[i] * width, in + i * width, width);
                  });
}

struct Place {
  int64_t sum, x;  // in elements
};
using ExpandedLoops = Loops<Place, &Place::sum, &Place::x>;

/// Of an expanded x, whose runs are elements that are adjacent, or all the same.
template <class T>
void add_runs(T* sum, const T* x, const ExpandedLoops& loops) {
  constexpr int64_t kSame = 256;
  const AddRun<T> add = add_run<T>();
  const int64_t length = loops.inner().size;
  parallel_chunks(loops.elements() / length, std::max<int64_t>(1, (1 << 15) / length),
                  [&](int64_t begin, int64_t end) {
                    ExpandedLoops::Walk walk(loops, begin);
                    for (int64_t i = begin; i < end; ++i, walk.next()) {
                      const Place at = walk.at(0);
                      T* const out = sum + at.sum;
                      const T* const from = x + at.x;
                      if (loops.inner().x == 1) {
                        add(out, from, length);
                        continue;
                      }
                      T same[kSame];
                      std::fill_n(same, std::min(kSame, length), *from);
                      for (int64_t j = 0; j < length; j += kSame)
                        add(out + j, same, std::min(kSame, length - j));
                    }
                  });
}

/// Of two row-sparse ones of the same dtype.
Tensor merged(const Tensor& a, const Tensor& b) {
  const int64_t *of_a = a.rows().data<int64_t>(), *of_b = b.rows().data<int64_t>();
  const int64_t n_a = a.rows().numel(), n_b = b.rows().numel();
  const Tensor all = empty({n_a + n_b}, DType::i64);
  int64_t* const last = std::set_union(of_a, of_a + n_a, of_b, of_b + n_b, all.out<int64_t>());
  const int64_t n = last - all.data<int64_t>();
  const Tensor rows = raw::slice(all, 0, 0, n);

  // As of a table that has these rows alone.
  const auto at = [&](const Tensor& part) {
    const Tensor places = empty(part.rows().shape(), DType::i64);
    const int64_t* next = rows.data<int64_t>();
    for (int64_t i = 0; i < part.rows().numel(); ++i) {
      next = std::lower_bound(next, rows.data<int64_t>() + n, part.rows().data<int64_t>()[i]);
      places.out<int64_t>()[i] = next - rows.data<int64_t>();
    }
    return places;
  };
  const Tensor values = sparse_rows(at(a), a.values(), n).to_dense();
  add_(values, sparse_rows(at(b), b.values(), n));
  return sparse_rows(rows, values, a.size(0));
}

Tensor as_dtype(const Tensor& sparse, DType dtype) {
  return sparse_rows(sparse.rows(), raw::to(sparse.values(), dtype), sparse.size(0));
}

}  // namespace

bool solely_owned(const Tensor& t) {
  if (t.is_sparse()) return t.identity().use_count() == 1 && solely_owned(t.values());
  return t.identity().use_count() == 1 && t.storage().use_count() == 1;
}

Tensor owned(Tensor t, DType dtype, MemoryFormat format) {
  if (t.is_sparse()) {
    if (t.dtype() != dtype) return as_dtype(t, dtype);
    return solely_owned(t) ? t : sparse_rows(t.rows(), raw::clone(t.values()), t.size(0));
  }
  if (t.dtype() == dtype && t.is_dense_as(format) && solely_owned(t)) return t;
  Tensor copy = empty(t.shape(), dtype, format);
  raw::copy_(copy, t);
  return copy;
}

void add_(const Tensor& sum, const Tensor& t) {
  if (t.is_sparse()) {
    check(sum.format() == MemoryFormat::contiguous, "backward",
          "gradient: expected a contiguous one beside a row-sparse one, got {}", sum);
    const Tensor in = raw::contiguous(raw::to(t.values(), sum.dtype()));
    const int64_t n = t.rows().numel();
    visit_floating("backward", sum.dtype(), [&]<class T>(std::type_identity<T>) {
      add_rows(sum.out<T>(), in.data<T>(), t.rows().data<int64_t>(), n, n > 0 ? in.numel() / n : 0);
    });
    sum.storage()->bump_version();
    return;
  }
  constexpr int64_t kLeast = 16;  // elements of a run that are worth a call
  if (const ExpandedLoops loops(sum.shape(), sum.strides(), t.strides());
      t.dtype() == sum.dtype() && !t.is_dense_as(sum.format()) && loops.inner().size >= kLeast &&
      (loops.inner().x == 0 || loops.inner().x == 1)) {
    visit_floating("backward", sum.dtype(), [&]<class T>(std::type_identity<T>) {
      add_runs(sum.out<T>(), t.data<T>(), loops);
    });
    sum.storage()->bump_version();
    return;
  }
  const Tensor x = raw::contiguous(raw::to(t, sum.dtype()), sum.format());
  visit_floating("backward", sum.dtype(), [&]<class T>(std::type_identity<T>) {
    T* const out = sum.out<T>();
    const T* const in = x.data<T>();
    const AddRun<T> add = add_run<T>();
    parallel_chunks(sum.numel(), 1 << 15,
                    [=](int64_t begin, int64_t end) { add(out + begin, in + begin, end - begin); });
  });
  sum.storage()->bump_version();
}

Tensor add(Tensor a, Tensor b) {
  const DType dtype = promote(a.dtype(), b.dtype());
  if (a.is_sparse() && b.is_sparse()) return merged(as_dtype(a, dtype), as_dtype(b, dtype));
  if (a.is_sparse()) std::swap(a, b);
  if (b.is_sparse()) {
    Tensor sum = owned(std::move(a), dtype, MemoryFormat::contiguous);
    add_(sum, b);
    return sum;
  }
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
