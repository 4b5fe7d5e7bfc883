// A strip on AMX tiles: the epilogue of a tile, which is vectors, runs in the shadow of the next
// one's products, 16 cycles a multiplication.
#pragma once
#include "quern/ops/kernels/gemm/strip.h"
#include "quern/ops/kernels/gemm/tiles/tile_amx.h"

namespace quern::kernels {

/// StripEpilogue: static CompleteOutputs* of(const Epilogue&), and prefetch(const void*).
template <class Tiles, class StripEpilogue>
class AmxStrip {
  using Gemm = AmxGemm<Tiles>;
  static constexpr int64_t kLine = 64;
  static constexpr int kMr = Gemm::kMr, kNr = Gemm::kNr, kStep = Gemm::kKMultiple;

 public:
  static void run(const GemmStrip& strip) {
    const typename Gemm::Use use;
    AmxStrip run(strip);
    for (int64_t p = 0; p < strip.panels; ++p)
      for (int64_t t = 0; t < strip.tiles; ++t) run.tile(p, t);
    run.complete(kMr);
  }

 private:
  explicit AmxStrip(const GemmStrip& strip)
      : strip_(strip),
        complete_(StripEpilogue::of(*strip.epilogue)),
        prefetch_(static_cast<const char*>(strip.prefetch)),
        prefetch_end_(prefetch_ + strip.prefetch_bytes) {
    const int64_t steps = strip.batch * strip.k / kStep, all = steps * strip.tiles * strip.panels;
    prefetch_step_ = all == 0 ? 0 : (strip.prefetch_bytes / all + kLine) / kLine * kLine;
    if (all > 0)
      lines_a_step_ =
          strip.next_rows * ((strip.n * (strip.epilogue->wide ? 4 : 2) + kLine - 1) / kLine) / all +
          1;
    outputs_a_step_ = steps == 0 ? kMr : (kMr + steps - 1) / steps;
  }

  void tile(int64_t panel, int64_t index) {
    const StripTile& tile = strip_.tile[index];
    if (strip_.sums) {
      float* const to = strip_.sums + (panel * strip_.tiles + index) * kMr * kNr;
      return multiply(tile, panel, to);
    }
    float* const to = sums_[turn_ ^= 1];
    multiply(tile, panel, to);
    complete(kMr);
    const int64_t column = panel * kNr, left = strip_.n - column;
    waiting_ = {to, &tile, strip_.epilogue, column, left < kNr ? left : kNr};
    completed_ = 0;
  }

  void multiply(const StripTile& tile, int64_t panel, float* to) {
    Gemm::configure(tile.m);
    tile.m > kMr / 2 ? multiply<2>(tile, panel, to) : multiply<1>(tile, panel, to);
  }
  template <int kRowTiles>
  void multiply(const StripTile& tile, int64_t panel, float* to) {
    corners<kRowTiles>([&]<int t>(int64_t) { Tiles::template zero<t>(); });
    const int64_t a_bytes = strip_.lda * 2;
    constexpr int64_t b_bytes = kNr * Gemm::kKr * 2;
    for (int64_t i = 0; i < strip_.batch; ++i) {
      const auto* a = static_cast<const uint16_t*>(strip_.a[i]) + tile.a;
      const auto* b = static_cast<const uint16_t*>(strip_.b[i]) + panel * strip_.b_panel;
      for (int64_t p = 0; p < strip_.k; p += kStep, a += kStep, b += kStep * kNr) {
        Tiles::template load<6>(b, b_bytes);
        Tiles::template load<4>(a, a_bytes);
        Tiles::template dot<0, 4, 6>();
        Tiles::template load<7>(b + kNr, b_bytes);
        Tiles::template dot<1, 4, 7>();
        if constexpr (kRowTiles == 2) {
          Tiles::template load<5>(a + kMr / 2 * strip_.lda, a_bytes);
          Tiles::template dot<2, 5, 6>();
          Tiles::template dot<3, 5, 7>();
        }
        between_products();
      }
    }
    corners<kRowTiles>(
        [&]<int t>(int64_t at) { Tiles::template store<t>(to + at, kNr * sizeof(float)); });
  }

  /// f for each tile register of C, with where in sums its first element is.
  template <int kRowTiles, class F>
  static void corners(F f) {
    f.template operator()<0>(0);
    f.template operator()<1>(kNr / 2);
    if constexpr (kRowTiles == 2) {
      f.template operator()<2>(kMr / 2 * kNr);
      f.template operator()<3>(kMr / 2 * kNr + kNr / 2);
    }
  }

  /// A step's share of everything else.
  void between_products() {
    complete(completed_ + outputs_a_step_);
    prefetch_next();
    if (prefetch_ >= prefetch_end_) return;
    for (int64_t i = 0; i < prefetch_step_; i += kLine) StripEpilogue::prefetch(prefetch_ + i);
    prefetch_ += prefetch_step_;
  }
  /// The lines that the next strip is completed in, one behind the other as hardware prefetchers
  /// follow them: 16 misses at a time, which is what a core has room for in L1, would take longer
  /// than the products.
  void prefetch_next() {
    const Epilogue& f = *strip_.epilogue;
    const int64_t item = f.wide ? 4 : 2, row_bytes = strip_.n * item;
    for (int64_t i = 0; i < lines_a_step_ && next_row_ < strip_.next_rows; ++i) {
      const int64_t at = (strip_.next_out + next_row_ * strip_.next_stride) * item + next_byte_;
      StripEpilogue::prefetch(static_cast<const char*>(f.out) + at);
      if (f.residual) StripEpilogue::prefetch(static_cast<const char*>(f.residual) + at);
      if (f.x) StripEpilogue::prefetch(static_cast<const char*>(f.x) + at);
      next_byte_ += kLine;
      if (next_byte_ >= row_bytes) next_byte_ = 0, ++next_row_;
    }
  }
  /// The waiting tile's outputs up to `end`.
  void complete(int64_t end) {
    if (!waiting_.tile) return;
    if (end > waiting_.tile->outputs) end = waiting_.tile->outputs;
    if (completed_ < end) complete_(waiting_, completed_, end);
    completed_ = end;
  }

  const GemmStrip& strip_;
  CompleteOutputs* const complete_;
  const char *prefetch_, *prefetch_end_;  // of strip.prefetch
  int64_t prefetch_step_;
  SummedTile waiting_{};  // to be completed; none at first
  int64_t completed_ = 0, outputs_a_step_;
  int turn_ = 0;
  int64_t next_row_ = 0, next_byte_ = 0, lines_a_step_ = 0;
  alignas(64) float sums_[2][kMr * kNr];  // of this tile, and of the one before
};

}  // namespace quern::kernels
