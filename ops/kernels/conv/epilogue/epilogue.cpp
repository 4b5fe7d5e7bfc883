#include "quern/ops/kernels/conv/epilogue/epilogue.h"
#include "quern/ops/kernels/pack/matrix.h"

#include <algorithm>

#include "quern/ops/kernels/conv/source_block.h"
#include "quern/ops/kernels/moments.h"
#include "quern/tensor/dtype.h"

namespace quern::kernels {

EpilogueFusion epilogue_of(const ForwardFusion& f) {
  using Kind = EpilogueFusion::Kind;
  const bool activates = f.shift || f.residual || f.relu;
  return {.kind = f.mean      ? Kind::moments
                  : activates ? Kind::activate
                              : Kind::store,
          .shift = f.shift,
          .residual = f.residual,
          .relu = f.relu,
          .first = f.mean,
          .second = f.m2};
}

EpilogueFusion epilogue_of(const DgradFusion& f) {
  using Kind = EpilogueFusion::Kind;
  return {.kind = f.x          ? Kind::gradient
                  : f.residual ? Kind::activate
                               : Kind::store,
          .center = f.center,
          .scale = f.scale,
          .shift = f.shift,
          .residual = f.residual,
          .x = f.x,
          .first = f.sum_dz,
          .second = f.sum_dzx};
}

template <class Acc>
void PanelSums<Acc>::start_pivot(const SumTile& tile) {
  for (int64_t i = 0; i < tile.m; ++i) {
    const Acc* row = static_cast<const Acc*>(tile.sums) + i * tile.stride;
    for (int64_t j = 0; j < n_; ++j) pivot[j] += row[j];
  }
  for (int64_t j = 0; j < n_; ++j) pivot[j] /= static_cast<Acc>(tile.m);
}

template <class Acc>
void PanelSums<Acc>::flush() {
  if (pending_ == 0) return;
  if (moments_) {
    // Moments about the pivot become those about the mean.
    double mean[kMaxNr], m2[kMaxNr];
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
TileOutput<T>::TileOutput(const EpilogueFusion& fusion, const GemmKernel& gemm,
                          const ImageStrides& strides, int64_t pixel, int64_t channels,
                          int64_t blocks, T* output)
    : fusion_(fusion),
      gemm_(gemm),
      strides_(strides),
      pixel_(pixel),
      channels_(channels),
      blocks_(blocks),
      output_(output),
      adds_in_place_(fusion.residual == output && fusion.kind == Kind::activate && !fusion.shift &&
                     !fusion.relu),
      kernel_(select_tile_kernel(dtype_of<T>)),
      totals_(has_sums() ? 2 * blocks * channels * static_cast<int64_t>(sizeof(double)) : 0),
      no_shift_(fusion.shift ? 0 : channels * static_cast<int64_t>(sizeof(Acc))) {
  if (!fusion.shift) fusion_.shift = std::fill_n(no_shift_.as<Acc>(), channels, Acc{}) - channels;
}

/// A tile's rows of a tensor like the output: where they are, or copied with channels innermost.
template <class T>
TileRows TileOutput<T>::gather(const void* tensor, int64_t offset, int64_t m, int64_t n,
                               T* scratch) const {
  if (!tensor) return {nullptr, 0};
  const T* from = static_cast<const T*>(tensor) + offset;
  if (strides_.c == 1) return {from, pixel_};
  copy_matrix(sizeof(T), from, pixel_, strides_.c, scratch, gemm_.nr, m, n);
  return {scratch, gemm_.nr};
}

/// A tile to an output whose channels are not innermost.
template <class T>
void TileOutput<T>::scatter(const T* tile, int64_t m, int64_t n, T* to) const {
  if (pixel_ == 1) return copy_matrix(sizeof(T), tile, 1, gemm_.nr, to, strides_.c, n, m);
  for (int64_t j = 0; j < n; ++j)
    for (int64_t i = 0; i < m; ++i) to[j * strides_.c + i * pixel_] = tile[i * gemm_.nr + j];
}

template <class T>
void TileOutput<T>::fetch(int64_t m, int64_t n, int64_t offset) const {
  if (strides_.c != 1) return;
  constexpr int64_t line = 64 / sizeof(T);
  const auto rows = [&](const T* p) {
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; j += line) __builtin_prefetch(p + i * pixel_ + j);
  };
  if (!direct()) rows(output_ + offset);  // else it is C, which the micro-kernel fetches
  if (fusion_.residual) rows(static_cast<const T*>(fusion_.residual) + offset);
  if (fusion_.x) rows(static_cast<const T*>(fusion_.x) + offset);
}

template <class T>
void TileOutput<T>::finish(GemmTile& tile, int64_t channel, int64_t offset, T* scratch,
                           PanelSums<Acc>& sums, int64_t jump) const {
  if (direct() && fusion_.kind == Kind::store) {
    if (tile.batch > 0) gemm_.run(tile);
    return;
  }
  const int64_t m = tile.m, n = tile.n;
  const bool innermost = strides_.c == 1;
  const int64_t items = innermost ? 0 : scratch_items(m) / 3;
  T* to = innermost ? output_ + offset : scratch;
  const TileFinish finish{
      .kind = fusion_.kind,
      .out = to,
      .out_stride = innermost ? pixel_ : gemm_.nr,
      .jump = jump,
      .scale = array(fusion_.scale, channel),
      .shift = array(fusion_.shift, channel),
      .center = fusion_.kind == Kind::moments ? sums.pivot : array(fusion_.center, channel),
      .residual = gather(fusion_.residual, offset, m, n, scratch + items),
      .x = gather(fusion_.x, offset, m, n, scratch + 2 * items),
      .relu = fusion_.relu,
      .wide = dtype_of<T> != gemm_.a,
      .first = sums.a,
      .second = sums.b};
  if (in_registers(n, tile.batch, sums)) {
    if (has_sums()) sums.prepare(tile.tiles * m);
    tile.finish = &finish;
    gemm_.run(tile);
  } else {
    fetch(m, n, offset + m * pixel_);
    if (tile.batch > 0) gemm_.run(tile);
    const SumTile complete{.sums = tile.c, .stride = tile.ldc, .m = m, .n = n};
    if (sums.needs_pivot()) sums.start_pivot(complete);
    if (has_sums()) sums.prepare(m);
    kernel_.run(complete, finish);
  }
  if (!innermost) scatter(to, m, n, output_ + offset);
}

template <class T>
void TileOutput<T>::merge(FunctionRef<int64_t(int64_t)> pixels) const {
  if (!has_sums()) return;
  parallel_chunks(channels_, 64, [&](int64_t begin, int64_t end) {
    double *first = fusion_.first + begin, *second = fusion_.second + begin;
    const int64_t n = end - begin;
    std::fill_n(first, n, 0.0);
    std::fill_n(second, n, 0.0);
    int64_t count = 0;
    for (int64_t block = 0; block < blocks_; ++block) {
      const double *a = total(block, 0) + begin, *b = total(block, 1) + begin;
      if (fusion_.kind == Kind::moments) {
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
template class TileOutput<float>;
template class TileOutput<bfloat16>;
template class TileOutput<double>;

}  // namespace quern::kernels
