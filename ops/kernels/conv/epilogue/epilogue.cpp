#include "quern/ops/kernels/conv/epilogue/epilogue.h"

#include <algorithm>

#include "quern/ops/kernels/blocking.h"
#include "quern/ops/kernels/conv/blocks.h"
#include "quern/ops/kernels/moments.h"
#include "quern/ops/kernels/pack/matrix.h"
#include "quern/tensor/dtype.h"
#include "quern/tensor/span.h"

namespace quern::kernels {

template <class Acc, int64_t kMost>
void PanelSums<Acc, kMost>::start_pivot(const SumTile& tile, int64_t first) {
  Acc* const to = pivot + first;
  for (int64_t i = 0; i < tile.m; ++i) {
    const Acc* row = static_cast<const Acc*>(tile.sums) + i * tile.stride;
    for (int64_t j = 0; j < tile.n; ++j) to[j] += row[j];
  }
  for (int64_t j = 0; j < tile.n; ++j) to[j] /= static_cast<Acc>(tile.m);
}

template <class Acc, int64_t kMost>
void PanelSums<Acc, kMost>::pivot_from_sums(int64_t m) {
  for (int64_t j = 0; j < n_; ++j) pivot[j] = a[j] / static_cast<Acc>(m), a[j] = b[j] = Acc{};
}

template <class Acc, int64_t kMost>
void PanelSums<Acc, kMost>::flush() {
  if (pending_ == 0) return;
  if (moments_) {
    // Moments about the pivot become those about the mean.
    double mean[kMost], m2[kMost];
    const double n = static_cast<double>(pending_);
    for (int64_t j = 0; j < n_; ++j) {
      const double d = static_cast<double>(a[j]), d2 = static_cast<double>(b[j]);
      mean[j] = static_cast<double>(pivot[j]) + d / n;
      m2[j] = d2 - d * d / n;
    }
    merge_moments(first_, second_, rows_, mean, m2, pending_, n_);
    for (int64_t j = 0; j < n_; ++j) pivot[j] = static_cast<Acc>(first_[j]);
  } else {
    for (int64_t j = 0; j < n_; ++j) {
      first_[j] += static_cast<double>(a[j]);
      second_[j] += static_cast<double>(b[j]);
    }
  }
  std::fill_n(a, n_, Acc{});
  std::fill_n(b, n_, Acc{});
  rows_ += pending_;
  pending_ = 0;
}

template <class T>
TileOutput<T>::TileOutput(const Epilogue& epilogue, const GemmKernel& gemm,
                          const ImageStrides& strides, int64_t pixel, int64_t images,
                          int64_t channels, int64_t blocks, T* output)
    : epilogue_(epilogue),
      gemm_(gemm),
      strides_(strides),
      pixel_(pixel),
      channels_(channels),
      blocks_(blocks),
      output_(output),
      bypasses_(strides.c == 1 && epilogue.residual != output &&
                cache::bypassed(output, images * strides.n * kItem, strides.x * kItem,
                                cache::larger_than_caches())),
      is_far_(images * strides.n * kItem > cache::just_written()),
      adds_in_place_(epilogue.residual == output && epilogue.kind == Kind::activate &&
                     !epilogue.map.shift && epilogue.activation == Activation::none),
      kernel_(select_tile_kernel(dtype_of<T>)),
      totals_(has_sums() ? 2 * blocks * channels * static_cast<int64_t>(sizeof(double)) : 0),
      no_shift_(epilogue.map.shift ? 0 : channels * static_cast<int64_t>(sizeof(Acc))) {
  if (!epilogue.map.shift)
    epilogue_.map.shift = std::fill_n(no_shift_.as<Acc>(), channels, Acc{}) - channels;
}

/// A tile's rows of a tensor like the output: where they are, or copied with channels innermost.
template <class T>
const T* TileOutput<T>::gather(const void* tensor, int64_t offset, int64_t m, int64_t n,
                               T* scratch) const {
  if (!tensor) return nullptr;
  const T* from = static_cast<const T*>(tensor) + offset;
  if (strides_.c == 1) return from;
  copy_matrix(sizeof(T), from, pixel_, strides_.c, scratch, gemm_.nr, m, n);
  return scratch;
}

/// A tile to an output whose channels are not innermost.
template <class T>
void TileOutput<T>::scatter(const T* tile, int64_t m, int64_t n, T* to) const {
  if (pixel_ == 1) return copy_matrix(sizeof(T), tile, 1, gemm_.nr, to, strides_.c, n, m);
  for (int64_t j = 0; j < n; ++j)
    for (int64_t i = 0; i < m; ++i) to[j * strides_.c + i * pixel_] = tile[i * gemm_.nr + j];
}

template <class T>
void TileOutput<T>::fetch(int64_t m, int64_t n, int64_t offset, bool streams) const {
  if (strides_.c != 1) return;
  constexpr int64_t line = 64 / sizeof(T);
  const auto rows = [&](const T* p) {
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; j += line) __builtin_prefetch(p + i * pixel_ + j);
  };
  // If direct, it is C, which the micro-kernel fetches.
  if (!direct() && !streams) rows(output_ + offset);
  if (epilogue_.residual) rows(static_cast<const T*>(epilogue_.residual) + offset);
  if (epilogue_.x) rows(static_cast<const T*>(epilogue_.x) + offset);
}

template <class T>
void TileOutput<T>::complete(GemmTile& tile, int64_t channel, int64_t offset, T* scratch,
                             PanelSums<Acc>& sums) const {
  const int64_t m = tile.m, n = tile.n, rows = tile.tiles * m;
  const bool completes = in_registers(tile.batch, sums);
  const bool streams =
      bypasses_ && !tile.accumulate && n == gemm_.nr && channel * kItem % cache::kLine == 0;
  if (tile.c == output_ + offset && epilogue_.kind == Kind::store && !completes) {
    if (tile.batch > 0) gemm_.run(tile);
    return;
  }
  const bool innermost = strides_.c == 1;
  const int64_t items = innermost ? 0 : scratch_items(rows) / 3;
  T* to = innermost ? output_ + offset : scratch;
  // Member by member: a copy would be loaded again before its stores have been forwarded.
  const Epilogue of_tile{
      .kind = epilogue_.kind,
      .activation = epilogue_.activation,
      .map = {.center = epilogue_.kind == Kind::moments ? sums.pivot
                                                        : array(epilogue_.map.center, channel),
              .scale = array(epilogue_.map.scale, channel),
              .shift = array(epilogue_.map.shift, channel),
              .activation = epilogue_.map.activation},
      .residual = gather(epilogue_.residual, offset, rows, n, scratch + items),
      .x = gather(epilogue_.x, offset, rows, n, scratch + 2 * items),
      .first = sums.a,
      .second = sums.b,
      .out = to,
      .stride = innermost ? pixel_ : gemm_.nr,
      .wide = dtype_of<T> != gemm_.a,
      .streams = streams,
      .waits = !streams && (is_far_ || has_sums() || epilogue_.residual)};
  if (completes) {
    if (has_sums()) sums.prepare(rows);
    tile.epilogue = &of_tile;
    gemm_.run(tile);
  } else {
    fetch(m, n, offset + m * pixel_, streams);
    if (tile.batch > 0) gemm_.run(tile);
    const SumTile whole{.sums = tile.c, .stride = tile.ldc, .m = m, .n = n};
    if (sums.needs_pivot()) sums.start_pivot(whole);
    if (has_sums()) sums.prepare(m);
    kernel_.run(whole, of_tile);
  }
  if (!innermost) scatter(to, rows, n, output_ + offset);
}

template <class T>
void TileOutput<T>::merge(FunctionRef<int64_t(int64_t)> pixels) const {
  if (!has_sums()) return;
  parallel_chunks(channels_, 64, [&](int64_t begin, int64_t end) {
    const PartSpan part("merge");
    double *first = static_cast<double*>(epilogue_.first) + begin,
           *second = static_cast<double*>(epilogue_.second) + begin;
    const int64_t n = end - begin;
    std::fill_n(first, n, 0.0);
    std::fill_n(second, n, 0.0);
    int64_t count = 0;
    for (int64_t block = 0; block < blocks_; ++block) {
      const double *a = total(block, 0) + begin, *b = total(block, 1) + begin;
      if (epilogue_.kind == Kind::moments) {
        merge_moments(first, second, count, a, b, pixels(block), n);
        count += pixels(block);
      } else {
        for (int64_t j = 0; j < n; ++j) first[j] += a[j], second[j] += b[j];
      }
    }
  });
}

template class PanelSums<float>;
template class PanelSums<double>;
template class PanelSums<float, kStripColumns>;
template class TileOutput<float>;
template class TileOutput<bfloat16>;
template class TileOutput<double>;

}  // namespace quern::kernels
