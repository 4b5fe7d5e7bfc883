// A strip on AMX tiles: the epilogue of a tile, some 150 cycles of vectors, runs in the shadow of
// the next one's products, 16 cycles a multiplication.
#pragma once
#include "quern/ops/kernels/gemm/strip.h"
#include "quern/ops/kernels/gemm/tiles/tile_amx.h"

namespace quern::kernels {

/// Finish: static FinishStrip* of(const Epilogue&), and prefetch(const void*).
template <class Tiles, class Finish>
class AmxStrip {
  using Gemm = AmxGemm<Tiles>;
  static constexpr int kMr = Gemm::kMr, kNr = Gemm::kNr, kStep = Gemm::kKMultiple;

 public:
  static void run(const GemmStrip& strip) {
    const typename Gemm::Use use;
    AmxStrip run(strip);
    for (int64_t p = 0; p < strip.panels; ++p)
      for (int64_t t = 0; t < strip.tiles; ++t) run.tile(p, t);
    run.finish(run.waiting_.tile ? run.waiting_.tile->outputs : 0);
  }

 private:
  explicit AmxStrip(const GemmStrip& strip)
      : strip_(strip),
        finish_(Finish::of(*strip.epilogue)),
        fetched_(static_cast<const char*>(strip.prefetch)) {
    const int64_t steps = strip.batch * strip.k / kStep;
    outputs_a_step_ = steps == 0 ? kMr : (kMr + steps - 1) / steps;
  }

  void tile(int64_t panel, int64_t index) {
    const StripTile& tile = strip_.tile[index];
    float* const kept = strip_.sums + (panel * strip_.tiles + index) * kMr * kNr;
    float* const to = strip_.last ? sums_[turn_ ^= 1] : kept;
    Gemm::configure(tile.m);
    tile.m > 16 ? multiply<2>(tile, panel, kept, to) : multiply<1>(tile, panel, kept, to);
    if (!strip_.last) return;
    finish(waiting_.tile ? waiting_.tile->outputs : 0);
    const int64_t column = panel * kNr, left = strip_.n - column;
    waiting_ = {to, &tile, strip_.epilogue, column, left < kNr ? left : kNr};
    finished_ = 0;
  }

  template <int kRowTiles>
  void multiply(const StripTile& tile, int64_t panel, const float* from, float* to) {
    corners<kRowTiles>([&]<int t>(int64_t at) {
      if (strip_.first) Tiles::template zero<t>();
      else Tiles::template load<t>(from + at, kNr * sizeof(float));
    });
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

  void between_products() {
    if (waiting_.tile) finish(finished_ + outputs_a_step_);
    if (!fetched_) return;
    Finish::prefetch(fetched_);
    Finish::prefetch(fetched_ + 64);
    fetched_ += strip_.prefetch_step;
  }
  /// The waiting tile's outputs up to `end`.
  void finish(int64_t end) {
    if (!waiting_.tile) return;
    if (end > waiting_.tile->outputs) end = waiting_.tile->outputs;
    if (finished_ < end) finish_(waiting_, finished_, end);
    finished_ = end;
  }

  const GemmStrip& strip_;
  FinishStrip* const finish_;
  const char* fetched_;
  SummedTile waiting_{};  // to be finished; none at first
  int64_t finished_ = 0, outputs_a_step_;
  int turn_ = 0;
  alignas(64) float sums_[2][kMr * kNr];  // of this tile, and of the one before
};

}  // namespace quern::kernels
