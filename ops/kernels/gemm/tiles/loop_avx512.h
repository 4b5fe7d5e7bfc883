// The loop of the AVX-512 tiles over a packed B.
#pragma once
#include "quern/ops/kernels/gemm/tiles/epilogue_avx512.h"

namespace quern::kernels {
namespace {

/// The rows of A, `stride` bytes apart. Two pointers and three strides reach all 14 by x86's
/// addressing modes (base + index times 1, 2, 4 or 8); left to itself, GCC keeps an offset for each
/// row, spills half of them and reloads them from the stack at every step.
template <int kRows>
class RowsOfA {
 public:
  __attribute__((always_inline)) RowsOfA(const void* a, int64_t stride)
      : first_(static_cast<const char*>(a)),
        second_(first_ + kHalf * stride),
        stride_(stride),
        stride3_(3 * stride),
        stride5_(5 * stride) {
    asm("" : "+r"(second_), "+r"(stride_), "+r"(stride3_), "+r"(stride5_));  // unrelated to GCC
  }
  __attribute__((always_inline)) const char* operator[](int r) const {
    const char* row = r < kHalf ? first_ : second_;
    switch (r % kHalf) {
      case 0: return row;
      case 1: return row + stride_;
      case 2: return row + 2 * stride_;
      case 3: return row + stride3_;
      case 4: return row + 4 * stride_;
      case 5: return row + stride5_;
      default: return row + 2 * stride3_;
    }
  }
  __attribute__((always_inline)) void advance(int64_t bytes) { first_ += bytes, second_ += bytes; }

 private:
  static constexpr int kHalf = (kRows + 1) / 2;
  const char *first_, *second_;  // halves
  int64_t stride_, stride3_, stride5_;
};

/// The rows of A `stride` bytes apart.
struct EvenRows {
  const void* first;
  int64_t stride;
  __attribute__((always_inline)) const char* operator[](int r) const {
    return static_cast<const char*>(first) + r * stride;
  }
};

/// Adds kr products to each sum: of A, row r of it `offset` bytes on from a[r], and of kr rows of
/// B. Products tells how: broadcast() takes the kr items of a row of A to all lanes, load() those
/// of 16 columns of B, add() multiplies them and adds.
template <class Products, int kRows, class Rows, class Items>
__attribute__((always_inline)) inline void add_products(Accumulators<kRows>& c, const Rows& a,
                                                        int64_t offset, Items b_lo, Items b_hi) {
#pragma GCC unroll 14
  for (int r = 0; r < kRows; ++r) {
    const Items x = Products::broadcast(a[r] + offset);
    c.lo[r] = Products::add(c.lo[r], x, b_lo);
    c.hi[r] = Products::add(c.hi[r], x, b_hi);
  }
}

/// The same of 2·kr products, in sums of two halves (Accumulators::join_halves), to the first 16
/// columns alone. With a broadcast for each multiplication, loads would be the bound.
template <class Products, int kRows, class Rows, class Items>
__attribute__((always_inline)) inline void add_half(Accumulators<kRows>& c, const Rows& a, Items b,
                                                    Items b_next) {
  const Items b_lo = interleave_lo(b, b_next), b_hi = interleave_hi(b, b_next);
#pragma GCC unroll 14
  for (int r = 0; r < kRows; ++r) {
    const Items x = Products::broadcast_two(a[r]);
    c.lo[r] = Products::add(c.lo[r], x, b_lo);
    c.hi[r] = Products::add(c.hi[r], x, b_hi);
  }
}

/// The same of the last kr products, where k has no 2·kr left: the second halves gain 0·0.
template <class Products, int kRows, class Rows, class Items>
__attribute__((always_inline)) inline void add_first_half(Accumulators<kRows>& c, const Rows& a,
                                                          Items b) {
  const Items b_lo = interleave_lo(b, Items{}), b_hi = interleave_hi(b, Items{});
#pragma GCC unroll 14
  for (int r = 0; r < kRows; ++r) {
    const Items x = Products::broadcast_to_evens(a[r]);
    c.lo[r] = Products::add(c.lo[r], x, b_lo);
    c.hi[r] = Products::add(c.hi[r], x, b_hi);
  }
}

/// Adds kr outer products to the sums of the first 16 columns alone. Items of two rows, which lie
/// side by side, are broadcast at once and meet each column of B twice: sums of two rows
/// interleave.
template <class Products, int kRows, class Items>
__attribute__((always_inline)) inline void add_row_pairs(Accumulators<kRows>& c, const EvenRows& a,
                                                         Items b) {
  const Items b_lo = interleave_lo(b, b), b_hi = interleave_hi(b, b);
#pragma GCC unroll 16
  for (int r = 0; r + 1 < kRows; r += 2) {
    const Items x = Products::broadcast_two(a[r]);
    c.lo[r] = Products::add(c.lo[r], x, b_lo);
    c.lo[r + 1] = Products::add(c.lo[r + 1], x, b_hi);
  }
  if constexpr (kRows % 2 != 0)
    c.lo[kRows - 1] = Products::add(c.lo[kRows - 1], Products::broadcast(a[kRows - 1]), b);
}
/// The sums of each row by itself again.
template <int kRows>
__attribute__((always_inline)) inline void sort_rows(Accumulators<kRows>& c) {
#pragma GCC unroll 16
  for (int r = 0; r + 1 < kRows; r += 2) {
    const __m512 lo = c.lo[r], hi = c.lo[r + 1];
    c.lo[r] = evens(lo, hi), c.lo[r + 1] = odds(lo, hi);
  }
}

/// What a tile prefetches while it multiplies: its rows of C, or the next tile's rows of all that
/// its epilogue reads and writes (End, epilogue_avx512.h), and `prefetch`. A little a step: all
/// rows at once would take the line-fill buffers that the loads of A and B need. A line that will
/// be written is prefetched for writing, else its store requests it a second time, for ownership.
template <class End, int kRows>
class Fetches {
 public:
  __attribute__((always_inline)) explicit Fetches(const GemmTile& tile)
      : prefetch_(static_cast<const char*>(tile.prefetch == nullptr ? tile.b[0] : tile.prefetch)),
        prefetch_step_(tile.prefetch_step),
        stride_(End::fetched(tile, at_)) {
    for (const char*& p : at_) p += 63;  // of a row amid lines, the first is the panel's before
    if (End::kNextTile) next_tile();
  }
  /// The tile after the one that it fetched for.
  __attribute__((always_inline)) void next_tile() {
    for (int i = 0; i < End::kTensors; ++i) at_[i] += kRows * stride_;
    offset_ = 0, lines_ = kRows * kLines;
  }
  /// Once for each 2·kr of k, outer products for each kr.
  __attribute__((always_inline)) void step() {
    line();
    _mm_prefetch(prefetch_, _MM_HINT_T1);
    _mm_prefetch(prefetch_ + 64, _MM_HINT_T1);
    prefetch_ += prefetch_step_;
  }
  /// What k was too short for. Where it was so for most of the lines, and these are in the caches,
  /// to prefetch them would take as long as the tile.
  __attribute__((always_inline)) void rest(const GemmTile& tile) {
    if (End::kNextTile && lines_ > kRows * kLines * 3 / 4 && !tile.epilogue->waits) return;
    while (lines_ > 0) line();
  }

 private:
  __attribute__((always_inline)) void line() {
    __builtin_prefetch(at_[0] + offset_, 1);
#pragma GCC unroll 3
    for (int i = 1; i < End::kTensors; ++i) _mm_prefetch(at_[i] + offset_, _MM_HINT_T0);
    const int64_t move = kLines == 1 || lines_ % 2 != 0 ? stride_ - (kLines - 1) * 64 : 64;
    offset_ += --lines_ > 0 ? move : 0;
  }

  static constexpr int kBytes = (End::kHalf ? kNr / 2 : kNr) * End::kItem;  // of a row
  static constexpr int kLines = (kBytes + 63) / 64;
  const char* at_[End::kTensors];
  int64_t offset_ = 0, lines_ = kRows * kLines;
  const char* prefetch_;
  int64_t prefetch_step_, stride_;
};

/// The row of B a page further on: hardware prefetchers stop at page ends and have to start anew on
/// each page, which holds up streams from L3 or memory, such as the weights of one image's
/// convolutions. Two prefetches beside 28 multiplications cost nothing where B lies in L1.
__attribute__((always_inline)) inline void fetch_row(const void* b) {
  const char* later = static_cast<const char*>(b) + 4096;
  _mm_prefetch(later, _MM_HINT_T0);
  _mm_prefetch(later + 64, _MM_HINT_T0);
}

/// Tiles of kRows rows. A turn adds kr products to each sum twice; what is left of k has its own
/// step behind the loop, since an exit from within makes GCC keep the rows' addresses of both.
/// What is around the loop counts where k is small: an out-of-order core overlaps the end of a tile
/// and the start of the next one with products only as far as its reorder buffer reaches. So each
/// End has a loop of its own, since GCC 12 moves all sums to other registers between one loop and
/// several ends, and those over products and tiles run at least once, as the contract has it.
template <class Products, int kRows>
struct Tiles {
  template <class End>
  __attribute__((noinline)) static void run(const GemmTile& tile) {
    constexpr int64_t item = sizeof(Item), kr = Products::kKr;
    Fetches<End, kRows> fetches(tile);
    int64_t row = 0;
    do {
      Accumulators<kRows> c;
      End::start(c, tile, row);
      int64_t i = 0;
      do {
        RowsOfA<kRows> a(static_cast<const Item*>(tile.a[i]) + row * tile.lda, item * tile.lda);
        const auto* b = static_cast<const Item*>(tile.b[i]);
        const bool one_more = tile.k % (2 * kr) != 0;
        const Item* const end = b + (tile.k - (one_more ? kr : 0)) * kNr;
        while (b != end) {
          fetches.step();
          if constexpr (End::kHalf) {
            add_half<Products>(c, a, Products::load(b), Products::load(b + kr * kNr));
          } else {
            add(c, a, 0, b);
            add(c, a, kr * item, b + kr * kNr);
          }
          a.advance(2 * kr * item), b += 2 * kr * kNr;
        }
        if (one_more) {
          if constexpr (End::kHalf) add_first_half<Products>(c, a, Products::load(b));
          else add(c, a, 0, b);
        }
      } while (++i < tile.batch);
      fetches.rest(tile);
      if constexpr (End::kHalf) c.join_halves();
      End::complete(c, tile, row);
      fetches.next_tile();
      row += kRows;
    } while (row < tile.tiles * kRows);
  }

 private:
  using Item = typename Products::Item;

  __attribute__((always_inline)) static void add(Accumulators<kRows>& c, const RowsOfA<kRows>& a,
                                                 int64_t offset, const Item* b) {
    fetch_row(b);
    add_products<Products>(c, a, offset, Products::load(b),
                           Products::load(b + Products::kKr * kNr / 2));
  }
};

/// kr rows of B, as add() takes them: 32 columns, or 16 in lo.
template <class Products>
struct RowsOfB {
  decltype(Products::load(nullptr)) lo, hi;
};

/// Outer products. Rows::load() loads kr rows of B, whose second, if it is there, is so many items
/// on; Rows::sort() puts the sums of columns in their order.
template <class Rows>
struct Outer {
  template <int kRows>
  static void run(const GemmTile& tile) {
    if (tile.n <= kNr / 2) return sum<kRows, true>(tile);
    if constexpr (kRows <= kMr) sum<kRows, false>(tile);
  }

 private:
  using Products = typename Rows::Products;
  using Item = typename Products::Item;

  template <int kRows, bool kHalf>
  static void sum(const GemmTile& tile) {
    constexpr int64_t kr = Products::kKr;
    Accumulators<kRows> c;
    Fetches<IntoC<kHalf>, kRows> fetches(tile);
    const auto add = [&](const Item* a, auto b) __attribute__((always_inline)) {
      const EvenRows rows{a, kr * int64_t{sizeof(Item)}};
      if constexpr (kHalf) add_row_pairs<Products>(c, rows, b.lo);
      else add_products<Products>(c, rows, 0, b.lo, b.hi);
    };
    for (int64_t i = 0; i < tile.batch; ++i) {
      const auto* a = static_cast<const Item*>(tile.a[i]);
      const auto* b = static_cast<const Item*>(tile.b[i]);
#pragma GCC unroll 2
      for (int64_t p = 0; p + kr <= tile.k; p += kr, a += tile.lda, b += kr * tile.ldb) {
        fetches.step();
        add(a, Rows::template load<kHalf>(b, tile.ldb));
      }
      if (tile.k % kr != 0) add(a, Rows::template load<kHalf>(b, 0));
    }
    if constexpr (kHalf) sort_rows(c);
    Rows::template sort<kHalf>(c);
    c.template store<kHalf>(tile);
  }
};

/// AllTiles::run<End>; Rows is what `out` is like, if there is an epilogue.
template <class AllTiles, class Rows, bool kHalf>
void dispatch_end(const GemmTile& tile) {
  using Kind = Epilogue::Kind;
  if (tile.epilogue == nullptr) return AllTiles::template run<IntoC<kHalf>>(tile);
  switch (tile.epilogue->kind) {
    case Kind::store: return AllTiles::template run<Completed<Rows, Kind::store, kHalf>>(tile);
    case Kind::activate:
      return AllTiles::template run<Completed<Rows, Kind::activate, kHalf>>(tile);
    case Kind::moments: return AllTiles::template run<Completed<Rows, Kind::moments, kHalf>>(tile);
    case Kind::gradient:
      return AllTiles::template run<Completed<Rows, Kind::gradient, kHalf>>(tile);
  }
}
template <class AllTiles, class Rows>
void dispatch_end(const GemmTile& tile) {
  if (tile.n <= kNr / 2) dispatch_end<AllTiles, Rows, true>(tile);
  else dispatch_end<AllTiles, Rows, false>(tile);
}

}  // namespace
}  // namespace quern::kernels
