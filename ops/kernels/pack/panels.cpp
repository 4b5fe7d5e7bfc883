#include "quern/ops/kernels/pack/panels.h"

#include <algorithm>

#include "quern/ops/kernels/pack/matrix.h"
#include "quern/tensor/dtype.h"

namespace quern::kernels {
namespace {

/// Rows of a panel from p on, kr of them interleaved.
template <class T>
struct PanelRows {
  T* panel;
  int64_t nr, kr;
  T* at(int64_t p) const { return panel + p / kr * nr * kr + p % kr; }
};

/// Whole groups of rows that lie dense: interleaved two by two. How many rows are done.
int64_t interleave_rows(const PanelRows<uint16_t>& to, const uint16_t* src, int64_t row_stride,
                        int64_t k, int64_t n, int64_t row0) {
  constexpr int64_t kColumns = 96;  // at a time, of groups of four
  const auto interleave = copy_kernel().interleave16;
  const auto row = [&](int64_t i) { return src + i * row_stride; };
  int64_t i = 0;
  if (to.kr == 2) {
    for (; i + 1 < k; i += 2) interleave(row(i), row(i + 1), n, to.at(row0 + i));
  } else {
    uint16_t even[2 * kColumns], odd[2 * kColumns];
    for (; i + 3 < k; i += 4)
      for (int64_t j = 0; j < n; j += kColumns) {
        const int64_t some = std::min(kColumns, n - j);
        interleave(row(i) + j, row(i + 2) + j, some, even);
        interleave(row(i + 1) + j, row(i + 3) + j, some, odd);
        interleave(even, odd, 2 * some, to.at(row0 + i) + j * to.kr);
      }
  }
  return i;
}

/// Whole groups of columns that lie dense: words of kr items are transposed. How many rows are
/// done.
template <class T>
int64_t transpose_words(const PanelRows<T>& to, const T* src, int64_t col_stride, int64_t k,
                        int64_t n, int64_t row0) {
  const int64_t kr = to.kr, word = kr * static_cast<int64_t>(sizeof(T)), groups = k / kr;
  const auto aligned = [=](const T* p) {
    return reinterpret_cast<uintptr_t>(p) % static_cast<size_t>(word) == 0;
  };
  if (col_stride % kr != 0 || !aligned(src) || !aligned(to.at(row0))) return 0;
  copy_matrix(word, src, 1, col_stride / kr, to.at(row0), to.nr, groups, n);
  return groups * kr;
}

/// The same of columns that do not begin at words, through their items transposed: worth it for
/// more than a few columns.
int64_t transpose_items(const PanelRows<uint16_t>& to, const uint16_t* src, int64_t col_stride,
                        int64_t k, int64_t n, int64_t row0) {
  constexpr int64_t kRows = 32, kFewColumns = 8, kColumns = 96;
  if (n < kFewColumns || n > kColumns) return 0;
  uint16_t rows[kRows * kColumns];
  int64_t done = 0;
  for (int64_t count; (count = std::min(kRows, (k - done) / to.kr * to.kr)) > 0; done += count) {
    copy_matrix(sizeof(*src), src + done, 1, col_stride, rows, n, count, n);
    interleave_rows(to, rows, n, count, n, row0 + done);
  }
  return done;
}

}  // namespace

void pack_panel_rows(const PanelFormat& format, const void* src, int64_t row_stride,
                     int64_t col_stride, int64_t k, int64_t n, int64_t row0, void* panel) {
  visit_item(itemsize(format.dtype), [&]<class T>(std::type_identity<T>) {
    const T* from = static_cast<const T*>(src);
    const PanelRows<T> to{static_cast<T*>(panel), format.nr, format.kr};
    if (format.kr == 1)
      return copy_matrix(sizeof(T), from, row_stride, col_stride, to.at(row0), format.nr, k, n);
    int64_t done = 0;
    if (row0 % format.kr == 0) {
      if (row_stride == 1) {
        done = transpose_words(to, from, col_stride, k, n, row0);
        if constexpr (sizeof(T) == 2)
          if (done == 0) done = transpose_items(to, from, col_stride, k, n, row0);
      } else if constexpr (sizeof(T) == 2) {
        if (col_stride == 1) done = interleave_rows(to, from, row_stride, k, n, row0);
      }
    }
    constexpr int64_t kBlock =
        16;  // of rows: whole cache lines of columns that are dense, few of the panel
    for (int64_t i = done; i < k; i += kBlock)
      for (int64_t j = 0; j < n; ++j)
        for (int64_t p = i; p < std::min(k, i + kBlock); ++p)
          to.at(row0 + p)[j * format.kr] = from[p * row_stride + j * col_stride];
  });
}

bool packs_panels(const PanelFormat& format) {
  return (format.dtype == DType::f32 && format.kr == 1) ||
         (format.dtype == DType::bf16 && format.kr == 2);
}

void pack_panels(const PanelFormat& format, const PanelCopy& copy) {
  (format.kr == 1 ? copy_kernel().panels32 : copy_kernel().pair_panels16)(copy);
}

void round_panels(const PanelCopy& copy) { copy_kernel().round_pair_panels(copy); }

}  // namespace quern::kernels
