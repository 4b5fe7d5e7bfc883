// What follows a tile's sums in the engines of forward and dgrad: the epilogue, rounding, the
// store.
#pragma once
#include <algorithm>
#include <cstddef>

#include "quern/ops/kernels/conv/conv_kernel.h"
#include "quern/ops/kernels/conv/epilogue/tile_kernel.h"
#include "quern/ops/kernels/gemm/gemm_kernel.h"
#include "quern/ops/kernels/table.h"
#include "quern/tensor/dtype.h"
#include "quern/tensor/parallel.h"
#include "quern/tensor/storage.h"

namespace quern::kernels {

/// For bf16, f32 or f64.
inline const TileKernel& select_tile_kernel(DType dtype) {
  return select_by_dtype<TileKernel>(
      "conv_tile", dtype, [=](const TileKernel& kernel) { return kernel.dtype == dtype; });
}

/// What a tile kernel sums up over some tiles of a panel of output channels. f32 sums are at most
/// kRows long, which bounds their error; then f64 takes them in.
template <class Acc, int64_t kMost = kMaxNr>
class PanelSums {
 public:
  static constexpr int64_t kRows = 256;

  /// Totals of n channels go to first and second.
  PanelSums(Epilogue::Kind kind, int64_t n, double* first, double* second)
      : moments_(kind == Epilogue::Kind::moments), n_(n), first_(first), second_(second) {
    if (!first) return;
    std::fill_n(first, n, 0.0);
    std::fill_n(second, n, 0.0);
    for (Acc* sums : {pivot, a, b}) std::fill_n(sums, n, Acc{});
  }
  /// Is a first tile to tell where the moments' pivot is?
  bool needs_pivot() const { return moments_ && rows_ + pending_ == 0; }
  /// The tile is of the channels from `first` on.
  void start_pivot(const SumTile& tile, int64_t first = 0);
  /// Its place is the mean of m rows, whose distances from 0 a has; the sums start anew.
  void pivot_from_sums(int64_t m);
  /// Room for m more rows.
  void prepare(int64_t m) {
    if (pending_ + m > kRows) flush();
    pending_ += m;
  }
  void flush();

  // Uninitialised where there are no totals.
  alignas(64) Acc pivot[kMost];  // close to the mean
  alignas(64) Acc a[kMost], b[kMost];

 private:
  bool moments_;
  int64_t n_, pending_ = 0, rows_ = 0;
  double *first_, *second_;
};

/// Of all columns of a strip.
using StripSums = PanelSums<float, kStripColumns>;

/// The output of the engine: tiles go in, the output and its sums come out.
template <class T>
class TileOutput {
 public:
  using Acc = Accumulator<T>;
  using Kind = Epilogue::Kind;

  /// `pixel`: elements between the rows of a tile in the output, which has so many images as
  /// `strides` has them (rows of several may be one's). `blocks` cells add to a channel's sums.
  TileOutput(const Epilogue& epilogue, const GemmKernel& gemm, const ImageStrides& strides,
             int64_t pixel, int64_t images, int64_t channels, int64_t blocks, T* output);

  /// May sums be formed where the output is? Not if the residual may be there too.
  bool direct() const { return std::is_same_v<T, Acc> && strides_.c == 1 && !epilogue_.residual; }
  /// Are sums added to what the output holds, and is nothing else done?
  bool adds_in_place() const { return adds_in_place_; }
  /// Scratch that complete() takes for up to so many rows, or for what group_rows() and at_once()
  /// say: tiles that have channels innermost, which the output has not.
  int64_t scratch_items(int64_t rows) const {
    return strides_.c == 1 ? 0 : 3 * std::max(rows, kPlaneRows) * gemm_.nr;
  }
  template <class Sums = PanelSums<Acc>>
  Sums sums(int64_t block, int64_t channel, int64_t n) const {
    if (!has_sums()) return {epilogue_.kind, n, nullptr, nullptr};
    return {epilogue_.kind, n, total(block, 0) + channel, total(block, 1) + channel};
  }
  /// Does the micro-kernel complete sums of `batch` products?
  bool in_registers(int64_t batch, const PanelSums<Acc>& sums) const {
    return kernel_completes() && batch > 0 && !sums.needs_pivot();
  }
  /// How many rows are summed before they are completed together, since a call for each tile would
  /// take as long as the tile; 0: each tile is completed by itself.
  int64_t group_rows() const {
    const bool nothing_follows = direct() && epilogue_.kind == Kind::store;
    if (kernel_completes() || nothing_follows) return 0;
    return std::min(most_rows(), kGroupItems / gemm_.nr);
  }
  /// How many tiles of m rows, which have `batch` products,
  /// complete() takes at once of so many rows.
  int64_t at_once(int64_t rows, int64_t m, int64_t batch, const PanelSums<Acc>& sums) const {
    return in_registers(batch, sums) ? std::min(rows, most_rows()) / m : 1;
  }
  /// The last products of a tile (none: its batch is 0), then the epilogue: it belongs at `offset`
  /// in the output, from `channel` on.
  /// `tile` is changed, not copied: a copy loads several members at once, which store forwarding
  /// does not serve when they were just stored one by one, and so waits until these stores, and all
  /// before them, have reached the cache.
  void complete(GemmTile& tile, int64_t channel, int64_t offset, T* scratch,
                PanelSums<Acc>& sums) const;
  /// The same of m×n sums, rows ld apart, that nothing is to be added to.
  void complete_sums(Acc* sums_of_tile, int64_t ld, int64_t m, int64_t n, int64_t channel,
                     int64_t offset, T* scratch, PanelSums<Acc>& sums) const {
    GemmTile tile{};
    tile.m = m, tile.n = n, tile.c = sums_of_tile, tile.ldc = ld;
    complete(tile, channel, offset, scratch, sums);
  }
  /// The epilogue of the channels from one on, which starts at the first output.
  template <class Sums>
  Epilogue from_channel(int64_t channel, Sums& sums) const {
    const auto items = [&](const void* tensor) {
      return tensor ? static_cast<const T*>(tensor) + channel * strides_.c : nullptr;
    };
    return {
        .kind = epilogue_.kind,
        .activation = epilogue_.activation,
        .map = {.center = epilogue_.kind == Kind::moments ? sums.pivot
                                                          : array(epilogue_.map.center, channel),
                .scale = array(epilogue_.map.scale, channel),
                .shift = array(epilogue_.map.shift, channel),
                .activation = epilogue_.map.activation},
        .residual = items(epilogue_.residual),
        .x = items(epilogue_.x),
        .first = sums.a,
        .second = sums.b,
        .out = output_ + channel * strides_.c,
        .wide = dtype_of<T> != gemm_.a};
  }
  /// The channels' sums over all blocks, in their order; block i has pixels(i).
  void merge(FunctionRef<int64_t(int64_t)> pixels) const;

 private:
  static constexpr int64_t kItem = sizeof(T);
  static constexpr int64_t kGroupItems = 1536;  // 6 KiB of f32: in L1 with what they meet
  /// Pixels of a tile for planes: whole cache lines of each, which a tile's rows are parts of. 16
  /// KiB of f32 and 32 channels.
  static constexpr int64_t kPlaneRows = 128;

  bool kernel_completes() const {
    const Activation a = epilogue_.activation;  // an exponential has no room beside the sums
    return gemm_.takes_epilogues && (only_clamps(a) || a == Activation::hardswish) &&
           (epilogue_.kind != Kind::gradient || only_clamps(epilogue_.map.activation));
  }
  /// Of several tiles that complete() takes at once, at most.
  int64_t most_rows() const { return strides_.c == 1 ? PanelSums<Acc>::kRows : kPlaneRows; }
  bool has_sums() const { return epilogue_.first != nullptr; }
  double* total(int64_t block, int64_t which) const {
    return totals_.as<double>() + (2 * block + which) * channels_;
  }
  const Acc* array(const void* p, int64_t channel) const {
    return p ? static_cast<const Acc*>(p) + channel : nullptr;
  }
  /// Prefetches the memory of a tile: its rows are pages apart, and hardware prefetchers stop at
  /// page ends.
  void fetch(int64_t m, int64_t n, int64_t offset, bool streams) const;
  const T* gather(const void* tensor, int64_t offset, int64_t m, int64_t n, T* scratch) const;
  void scatter(const T* tile, int64_t m, int64_t n, T* to) const;

  Epilogue epilogue_;
  const GemmKernel& gemm_;
  ImageStrides strides_;
  int64_t pixel_, channels_, blocks_;
  T* output_;
  bool bypasses_;  // may what is written whole bypass the caches?
  bool is_far_;    // does it mostly come from memory?
  bool adds_in_place_;
  const TileKernel& kernel_;
  Workspace totals_;    // [block][2][channels]
  Workspace no_shift_;  // zeros [channels], where the epilogue has none
};

}  // namespace quern::kernels
