#include "quern/ops/detail/rows.h"

#include <algorithm>

#include "quern/ops/kernels/pack/matrix.h"
#include "quern/tensor/divide.h"
#include "quern/tensor/raw.h"

namespace quern::detail {
namespace {

constexpr int64_t kColumns = 16;     // rows gathered together: a cache line of f32 at each step
constexpr int64_t kGrain = 1 << 14;  // elements of a cell

template <class T>
void gather(const T* x, int64_t n, int64_t inner, int64_t columns, T* rows) {
  for (int64_t k = 0; k < n; ++k)
    for (int64_t c = 0; c < columns; ++c) rows[c * n + k] = x[k * inner + c];
}

template <class T>
void scatter(const T* rows, int64_t n, int64_t inner, int64_t columns, T* y) {
  for (int64_t k = 0; k < n; ++k)
    for (int64_t c = 0; c < columns; ++c) y[k * inner + c] = rows[c * n + k];
}

template <class T>
void rows_of(const Along& s, const T* x, const T* dy, T* y, FunctionRef<void(const RowData&)> body,
             int64_t at_once) {
  const auto at = [&s](auto* p, int64_t row) { return p ? p + row * s.n : nullptr; };
  if (s.inner == 1) {
    parallel_chunks(s.outer, std::max<int64_t>(1, kGrain / s.n), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; r += at_once)
        body({r, std::min(at_once, end - r), at(x, r), at(dy, r), at(y, r)});
    });
    return;
  }
  const int64_t blocks = (s.inner + kColumns - 1) / kColumns;
  const int64_t group = std::max<int64_t>(1, kGrain / (s.n * kColumns));
  parallel_chunks(s.outer * blocks, group, [&](int64_t begin, int64_t end) {
    const int64_t size = s.n * kColumns;
    const Workspace scratch(3 * size * static_cast<int64_t>(sizeof(T)));
    T* const xs = scratch.as<T>();
    T* const dys = dy ? xs + size : nullptr;
    T* const ys = y ? xs + 2 * size : nullptr;
    for (int64_t cell = begin; cell < end; ++cell) {
      const int64_t o = cell / blocks, i = cell % blocks * kColumns;
      const int64_t columns = std::min(kColumns, s.inner - i), first = o * s.n * s.inner + i;
      gather(x + first, s.n, s.inner, columns, xs);
      if (dy) gather(dy + first, s.n, s.inner, columns, dys);
      for (int64_t c = 0; c < columns; c += at_once)
        body({o * s.inner + i + c, std::min(at_once, columns - c), at(xs, c), at(dys, c),
              at(ys, c)});
      if (y) scatter(ys, s.n, s.inner, columns, y + first);
    }
  });
}

constexpr int64_t kStrip = 64;  // a column kernel's step: four vectors of AVX-512

const void* offset(const void* p, int64_t bytes) {
  return static_cast<const std::byte*>(p) + bytes;
}
void* offset(void* p, int64_t bytes) { return static_cast<std::byte*>(p) + bytes; }

/// for_each_column of adjacent rows.
void turned(const Along& s, int64_t itemsize, const void* x, const void* dy, void* y,
            FunctionRef<void(const ColumnData&)> body) {
  const int64_t row = s.n * itemsize, size = kStrip * row;
  const int64_t group = std::max<int64_t>(1, kGrain / (kStrip * s.n));
  parallel_chunks(ceil_div(s.outer, kStrip), group, [&](int64_t begin, int64_t end) {
    const Workspace scratch(3 * size);
    for (int64_t first = begin * kStrip; first < std::min(end * kStrip, s.outer); first += kStrip) {
      const int64_t count = std::min(kStrip, s.outer - first);
      const auto columns_of = [&](const void* rows, int64_t i) -> const void* {
        if (!rows) return nullptr;
        void* const to = offset(scratch.as<void>(), i * size);
        kernels::copy_matrix(itemsize, offset(rows, first * row), 1, s.n, to, kStrip, s.n, count);
        return to;
      };
      void* const results = y ? offset(scratch.as<void>(), 2 * size) : nullptr;
      body({first, count, kStrip, columns_of(x, 0), columns_of(dy, 1), results});
      if (y)
        kernels::copy_matrix(itemsize, results, 1, kStrip, offset(y, first * row), s.n, count, s.n);
    }
  });
}

}  // namespace

Along along(const Tensor& dense, int dim) {
  const MemoryFormat format = dense.format();
  Along s{1, 1, 1};
  bool seen = false;
  for (int i = 0; i < dense.dim(); ++i) {
    const int d = dimension_at(i, format);
    (d == dim ? s.n : seen ? s.inner : s.outer) *= dense.shape()[d];
    seen = seen || d == dim;
  }
  return s;
}

void for_each_row(const Along& shape, int64_t itemsize, const void* x, const void* dy, void* y,
                  FunctionRef<void(const RowData&)> body, int64_t at_once) {
  const auto run = [&]<class T>(T) {
    rows_of(shape, static_cast<const T*>(x), static_cast<const T*>(dy), static_cast<T*>(y), body,
            at_once);
  };
  switch (itemsize) {
    case 1: return run(uint8_t{});
    case 2: return run(uint16_t{});
    case 4: return run(uint32_t{});
    default: return run(uint64_t{});
  }
}

void for_each_column(const Along& s, int64_t itemsize, const void* x, const void* dy, void* y,
                     FunctionRef<void(const ColumnData&)> body) {
  if (s.inner == 1) return turned(s, itemsize, x, dy, y, body);
  const auto at = [=](auto* p, int64_t item) { return p ? offset(p, item * itemsize) : nullptr; };
  const int64_t wanted = std::max(kStrip, kGrain / s.n / kStrip * kStrip);
  const int64_t columns = std::min(wanted, s.inner), strips = ceil_div(s.inner, columns);
  const int64_t group = std::max<int64_t>(1, kGrain / (s.n * columns));
  parallel_chunks(s.outer * strips, group, [&](int64_t begin, int64_t end) {
    for (int64_t cell = begin; cell < end; ++cell) {
      const int64_t o = cell / strips, i = cell % strips * columns;
      const int64_t first = o * s.n * s.inner + i;
      body({o * s.inner + i, std::min(columns, s.inner - i), s.inner, at(x, first), at(dy, first),
            at(y, first)});
    }
  });
}

Tensor scatter_along(const Shape& shape, MemoryFormat format, int dim, const Tensor& dy,
                     const Tensor& indices) {
  const Tensor dx = zeros(shape, dy.dtype(), format);
  const Tensor from = raw::contiguous(dy, format), to = raw::contiguous(indices, format);
  const Along s = along(dx, dim);
  const int64_t taken = dy.shape()[dim];
  const int64_t* index = to.data<int64_t>();
  visit_floating("scatter", dy.dtype(), [&]<class T>(std::type_identity<T>) {
    const T* in = from.data<T>();
    T* out = dx.out<T>();
    parallel_chunks(s.outer, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, taken * s.inner)),
                    [=](int64_t begin, int64_t end) {
                      for (int64_t o = begin; o < end; ++o)
                        for (int64_t k = o * taken; k < (o + 1) * taken; ++k)
                          for (int64_t i = 0; i < s.inner; ++i)
                            out[(o * s.n + index[k * s.inner + i]) * s.inner + i] =
                                in[k * s.inner + i];
                    });
  });
  return dx;
}

}  // namespace quern::detail
