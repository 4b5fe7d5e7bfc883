// Copies between any two layouts and dtypes. The dimensions are put in the order of the
// destination's memory and merged where both sides allow it. What is left decides:
//   one dimension, dense on both sides   long runs, converted
//   source dense along another dimension a transpose, in tiles (NCHW to NHWC and back)
//   short rows, dense on both sides      row by row, along the next dimension
//   short runs of one value              value by value, the same way
//   anything else                        runs along the innermost dimension, however short
#include <algorithm>
#include <numeric>
#include <vector>

#include "quern/tensor/check_dense.h"
#include "quern/tensor/convert.h"
#include "quern/tensor/cpu_features.h"
#include "quern/tensor/divide.h"
#include "quern/tensor/loops.h"
#include "quern/tensor/parallel.h"
#include "quern/tensor/raw.h"
#include "quern/tensor/span.h"

namespace quern::raw {
namespace {

constexpr int64_t kGrain = 1 << 15;  // elements a cell: work enough to outweigh handing it out

struct Place {
  int64_t dst, src;  // in elements
};
using Loops = detail::Loops<Place, &Place::dst, &Place::src>;

/// One side of a copy.
struct Side {
  std::byte* data;
  DType dtype;

  explicit Side(const Tensor& t) : data(static_cast<std::byte*>(t.out_ptr())), dtype(t.dtype()) {}
  std::byte* at(int64_t element) const { return data + element * itemsize(dtype); }
};

/// Cuts the elements, each of `row` scalars, into cells, and these into runs(place, n) along the
/// innermost axis.
template <class F>
void for_each_run(const Loops& loops, int64_t row, F&& run) {
  const int64_t inner = loops.inner().size, elements = loops.elements();
  const int64_t cell = elements * row <= kGrain ? kGrain : kGrain / 4;  // threads end together
  const int64_t grain = std::max<int64_t>(1, cell / row);
  parallel_chunks(elements, grain, [&](int64_t begin, int64_t end) {
    Loops::Walk walk(loops, begin / inner);
    for (int64_t i = begin, first = begin % inner; i < end; first = 0, walk.next()) {
      const int64_t n = std::min(inner - first, end - i);
      run(walk.at(first), n);
      i += n;
    }
  });
}

/// A run with strides: elements are gathered, converted and scattered, each only where needed.
void convert_strided(const Side& dst, const Side& src, Place at, const Loops::Axis& axis,
                     int64_t n) {
  if (axis.dst == 1 && axis.src == 1) {
    detail::convert_run(dst.at(at.dst), dst.dtype, src.at(at.src), src.dtype, n);
    return;
  }
  if (dst.dtype == src.dtype) {
    detail::copy_run(dst.at(at.dst), axis.dst, src.at(at.src), axis.src, n, itemsize(dst.dtype));
    return;
  }
  constexpr int64_t kBuffer = 256;
  alignas(64) std::byte gathered[kBuffer * 8], converted[kBuffer * 8];
  for (int64_t i = 0; i < n; i += kBuffer) {
    const int64_t count = std::min(kBuffer, n - i);
    detail::copy_run(gathered, 1, src.at(at.src + i * axis.src), axis.src, count,
                     itemsize(src.dtype));
    detail::convert_run(converted, dst.dtype, gathered, src.dtype, count);
    detail::copy_run(dst.at(at.dst + i * axis.dst), axis.dst, converted, 1, count,
                     itemsize(dst.dtype));
  }
}

/// Are the innermost axis' runs dense, of one dtype, and so short that each is one step of the axis
/// around it?
bool has_short_rows(const Side& dst, const Side& src, const Loops& loops) {
  constexpr int64_t kShort = 4096;  // bytes: longer ones may have to be parts of several cells
  const Loops::Axis& axis = loops.inner();
  return loops.count() > 1 && dst.dtype == src.dtype && axis.dst == 1 && axis.src == 1 &&
         axis.size * itemsize(dst.dtype) <= kShort;
}

void copy_short_rows(const Side& dst, const Side& src, Loops loops) {
  const int64_t row = loops.inner().size, size = itemsize(dst.dtype);
  loops.drop_inner();
  const Loops::Axis& axis = loops.inner();
  for_each_run(loops, row, [&](Place at, int64_t n) {
    detail::copy_rows(dst.at(at.dst), axis.dst * size, src.at(at.src), axis.src * size, n,
                      row * size);
  });
}

/// Are the innermost axis' runs one value each, and so short that many follow each other?
bool repeats_values(const Side& dst, const Side& src, const Loops& loops) {
  constexpr int64_t kShort = 256;  // bytes
  const Loops::Axis& axis = loops.inner();
  return loops.count() > 1 && dst.dtype == src.dtype && axis.dst == 1 && axis.src == 0 &&
         loops[loops.count() - 2].dst == axis.size && axis.size * itemsize(dst.dtype) <= kShort;
}

void repeat_values(const Side& dst, const Side& src, Loops loops) {
  const int64_t run = loops.inner().size, size = itemsize(dst.dtype);
  loops.drop_inner();
  for_each_run(loops, run, [&](Place at, int64_t n) {
    detail::repeat_run(dst.at(at.dst), run, src.at(at.src), loops.inner().src, n, size);
  });
}

/// The axis along which the source is dense, if the copy is a transpose worth tiles; else -1.
int transposed_axis(const Loops& loops) {
  constexpr int64_t kWorthIt = 4;
  if (loops.inner().dst != 1 || loops.inner().src <= 1) return -1;  // 0: one element, repeated
  for (int i = 0; i < loops.count() - 1; ++i)
    if (loops[i].src == 1 && loops[i].size >= kWorthIt) return i;
  return -1;
}

constexpr int64_t kTile = 32;

/// Is a transpose of columns along an axis written past the caches? A result that L3 hardly holds
/// is, which saves reading what it overwrites, if tiles are whole cache lines; not where their
/// columns are pages apart, which memory takes one by one.
bool bypasses_caches(const Side& dst, const Loops& loops, int axis) {
  constexpr int64_t kLine = 64, kPage = 4096;
  const int64_t size = itemsize(dst.dtype);
  const auto whole_lines = [&](int64_t elements) { return elements * size % kLine == 0; };
  if (loops.elements() * size < cache_sizes().l3 / 2) return false;
  if (loops[axis].dst * size % kPage == 0) return false;
  for (int i = 0; i < loops.count() - 1; ++i)
    if (!whole_lines(loops[i].dst)) return false;
  return whole_lines(std::gcd(loops.inner().size, kTile)) &&
         reinterpret_cast<uintptr_t>(dst.data) % kLine == 0;
}

/// Tiles of 32 × 32: a row is read along the source's dense axis and converted into a buffer, a
/// column of which is written along the destination's. So both sides meet whole cache lines, one
/// row at a time, even where a stride of 4 KiB puts all rows of a tile into the same set of L1.
/// Without the buffer where nothing is converted and rows are few or near to each other.
void transpose(const Side& dst, const Side& src, Loops loops, int axis) {
  const Loops::Axis columns = loops[axis], rows = loops.inner();
  const bool streams = bypasses_caches(dst, loops, axis);
  loops[axis].size = 1;
  loops.drop_inner();
  const int64_t height = std::min(rows.size, kGrain / kTile);  // rows a cell
  const int64_t width = round_up(kGrain / height, kTile);      // columns a cell
  const int64_t down = ceil_div(rows.size, height), across = ceil_div(columns.size, width);
  const int64_t size = itemsize(dst.dtype), src_size = itemsize(src.dtype);
  // The rows of a tile are more streams than hardware prefetchers follow: beyond L2, each fetches
  // what the tile beside it reads, or the one below where a cell has not all rows.
  constexpr int64_t kFar = int64_t{1} << 20;
  const bool far = loops.elements() * rows.size * columns.size * src_size > kFar;
  const bool few = rows.size <= 8;  // of a set of L1
  const bool direct = dst.dtype == src.dtype && (few || rows.src * src_size <= 1024);
  const int64_t across_tile = few && direct && !streams ? 16 * kTile : kTile;
  const int64_t ahead = src_size * (down == 1 ? across_tile : kTile * rows.src);
  parallel_for(loops.elements() * across * down, [&](int64_t cell) {
    const Place at = loops.place(cell / (across * down));
    const int64_t c_begin = cell / down % across * width, r_begin = cell % down * height;
    const int64_t c_end = std::min(columns.size, c_begin + width);
    const int64_t r_end = std::min(rows.size, r_begin + height);
    alignas(64) std::byte tile[kTile * kTile * 8];  // [row][column] of dst's dtype
    for (int64_t c = c_begin; c < c_end; c += across_tile) {
      for (int64_t r = r_begin; r < r_end; r += kTile) {
        const int64_t m = std::min(kTile, r_end - r), n = std::min(across_tile, c_end - c);
        const std::byte* from = src.at(at.src + r * rows.src + c);
        int64_t pitch = rows.src;
        for (int64_t i = 0; far && i < m; ++i)
          for (int64_t line = 0; line < across_tile * src_size; line += 64)
            __builtin_prefetch(from + i * rows.src * src_size + ahead + line);
        if (!direct) {
          for (int64_t i = 0; i < m; ++i)
            detail::convert_run(tile + i * kTile * size, dst.dtype, from + i * rows.src * src_size,
                                src.dtype, n);
          from = tile, pitch = kTile;
        }
        std::byte* const to = dst.at(at.dst + c * columns.dst + r);
        if (streams) {
          alignas(64) std::byte turned[kTile * kTile * 8];
          detail::transpose_tile(turned, kTile, from, pitch, m, n, size);
          detail::stream_rows(to, columns.dst * size, turned, kTile * size, n, m * size);
        } else {
          detail::transpose_tile(to, columns.dst, from, pitch, m, n, size);
        }
      }
    }
  });
}

/// Where a loop over `shape` in one order meets a place a second time: exact, and slow.
bool visits_twice(const Shape& shape, const Strides& strides, int64_t places) {
  std::vector<bool> seen(static_cast<size_t>(places));
  const Loops loops(shape, strides, strides);
  for (int64_t i = 0; i < loops.elements(); ++i) {
    auto place = seen[static_cast<size_t>(loops.place(i).dst)];
    if (place) return true;
    place = true;
  }
  return false;
}

/// Does some place hold two elements of t? No where each dimension steps over all that lies within
/// it.
bool overlaps_itself(const Tensor& t) {
  const Loops loops(t.shape(), t.strides(), t.strides());
  int64_t reach = 0;  // from the first element to the last, of the dimensions so far
  bool nested = true;
  for (int i = loops.count() - 1; i >= 0; --i) {
    if (loops[i].size == 1) continue;
    nested = nested && loops[i].dst > reach;
    reach += (loops[i].size - 1) * loops[i].dst;
  }
  return !nested && visits_twice(t.shape(), t.strides(), reach + 1);
}

/// Of t as a view of `shape`, to which it broadcasts.
Strides expanded_strides(const Tensor& t, const Shape& shape) {
  Strides strides = Strides::filled(shape.size(), 0);
  const int lead = shape.size() - t.dim();
  for (int d = 0; d < t.dim(); ++d)
    if (t.shape()[d] != 1) strides[lead + d] = t.strides()[d];
  return strides;
}

Tensor converted(const Tensor& t, DType dtype, MemoryFormat format) {
  Tensor copy = empty(t.shape(), dtype, format);
  copy_(copy, t);
  return copy;
}

}  // namespace

void check_writable(std::string_view op, const Tensor& t, std::string_view name) {
  detail::check_dense(op, name, t);
  if (t.numel() <= 1) return;
  for (int d = 0; d < t.dim(); ++d)
    check(t.shape()[d] <= 1 || t.strides()[d] != 0, op,
          "{}: expected no expanded dimension, got {}", name, t);
  check(!overlaps_itself(t), op, "{}: expected elements that do not overlap, got {}", name, t);
}

bool may_overlap(const Tensor& a, const Tensor& b) {
  if (a.storage() != b.storage() || a.numel() == 0 || b.numel() == 0) return false;
  const auto end = [](const Tensor& t) {
    int64_t last = t.offset();
    for (int d = 0; d < t.dim(); ++d) last += (t.shape()[d] - 1) * t.strides()[d];
    return (last + 1) * itemsize(t.dtype());
  };
  return a.offset() * itemsize(a.dtype()) < end(b) && b.offset() * itemsize(b.dtype()) < end(a);
}

bool overlap(const Tensor& a, const Tensor& b) {
  if (!may_overlap(a, b)) return false;
  if (a.is_dense_as(a.format()) && b.is_dense_as(b.format())) return true;
  const auto each_byte = [](const Tensor& t, auto&& f) {
    const Loops loops(t.shape(), t.strides(), t.strides());
    const int64_t size = itemsize(t.dtype());
    for (int64_t i = 0; i < t.numel(); ++i)
      for (int64_t byte = 0; byte < size; ++byte)
        f(static_cast<size_t>((t.offset() + loops.place(i).src) * size + byte));
  };
  std::vector<bool> taken(static_cast<size_t>(a.storage()->bytes()));
  each_byte(a, [&](size_t byte) { taken[byte] = true; });
  bool shared = false;
  each_byte(b, [&](size_t byte) { shared = shared || taken[byte]; });
  return shared;
}

void copy_(const Tensor& dst, const Tensor& src) {
  check_writable("copy_", dst);
  detail::check_dense("copy_", "src", src);
  check(
      src.dim() <= dst.dim() && broadcast_shapes("copy_", dst.shape(), src.shape()) == dst.shape(),
      "copy_", "src: expected a shape that broadcasts to {}, got {}", dst, src);
  Span span("copy_");
  if (span) {
    span.set({}, to_string(dst.shape()),
             fmt::format("{}:{}->{}:{}", src.dtype(), src.format(), dst.dtype(), dst.format()));
    span.set_work(0, src.nbytes() + dst.nbytes());
  }
  const Tensor source = may_overlap(dst, src) ? clone(src) : src;
  const InPlaceChange change(dst.storage());
  if (dst.numel() == 0) return;
  const Side to(dst), from(source);
  const Loops loops(dst.shape(), dst.strides(), expanded_strides(source, dst.shape()));
  if (const int axis = transposed_axis(loops); axis >= 0) {
    transpose(to, from, loops, axis);
  } else if (has_short_rows(to, from, loops)) {
    copy_short_rows(to, from, loops);
  } else if (repeats_values(to, from, loops)) {
    repeat_values(to, from, loops);
  } else {
    for_each_run(loops, 1,
                 [&](Place at, int64_t n) { convert_strided(to, from, at, loops.inner(), n); });
  }
}

void fill_(const Tensor& dst, double value) {
  check_writable("fill_", dst);
  Span span("fill_");
  if (span) {
    span.set({}, to_string(dst.shape()), fmt::format("{}:{}", dst.dtype(), dst.format()));
    span.set_work(0, dst.nbytes());
  }
  const InPlaceChange change(dst.storage());
  if (dst.numel() == 0) return;
  const Side to(dst);
  alignas(8) std::byte element[8];
  detail::convert_run(element, dst.dtype(), reinterpret_cast<const std::byte*>(&value), DType::f64,
                      1);
  const Loops loops(dst.shape(), dst.strides(), dst.strides());
  for_each_run(loops, 1, [&](Place at, int64_t n) {
    detail::copy_run(to.at(at.dst), loops.inner().dst, element, 0, n, itemsize(dst.dtype()));
  });
}

Tensor clone(const Tensor& t) {
  detail::check_dense("clone", "tensor", t);
  return converted(t, t.dtype(), t.format());
}

Tensor contiguous(const Tensor& t, MemoryFormat format) {
  detail::check_dense("contiguous", "tensor", t);
  return t.is_dense_as(format) ? t : converted(t, t.dtype(), format);
}

Tensor to(const Tensor& t, DType dtype) {
  detail::check_dense("to", "tensor", t);
  return t.dtype() == dtype ? t : converted(t, dtype, t.format());
}

}  // namespace quern::raw
