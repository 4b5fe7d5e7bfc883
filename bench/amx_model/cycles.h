// What a core's counts cost: every constant of the model, with where it comes from.
#pragma once
#include <algorithm>
#include <utility>

#include "counting_tiles.h"

namespace quern::bench {

struct Cycles {
  // Intel's optimisation manual tells these, and peak_amx.cpp measures the first.
  static constexpr double kMultiplication = 16;  // of two tiles of 16×64 bytes
  static constexpr double kFlop = 2 * 16 * 16 * 32 / kMultiplication;  // a cycle, at most
  static constexpr double kLoadedRow = 0.5;  // two loads a cycle: 8 for a tile
  static constexpr double kStoredLine = 1;
  static constexpr double kDrain = 52;  // from a tile of C's last product to its sums
  // Measured on a Xeon of 3.7 GHz, by short loops and not by the layers that are modelled.
  static constexpr double kTornRow = 2;      // in two lines, by a tap's offset (kernels/blocking.h)
  static constexpr double kL2Bytes = 34;     // a cycle, to tile loads
  static constexpr double kBeyondBytes = 8;  // of L3: 30 GB/s a core on huge pages; 5 on small
  static constexpr double kFinishedRow = 5;  // 32 sums read, rounded, stored: 160 for a tile
  static constexpr double kGigahertz = 3.7;
  // Shuffles, one a cycle: 2 for 64 items interleaved, 80 for 512 transposed as pairs.
  static constexpr double kCopiedLine = 2, kTurnedLine = 5;

  double products, loads, l2;      // overlap: the longest of them counts
  double finish, beyond, packing;  // is added

  explicit Cycles(const Counts& n)
      : products(kMultiplication * real(n.multiplications)),
        loads(kLoadedRow * real(n.loaded_rows) +
              (kTornRow - kLoadedRow) * real(n.loaded_lines - n.loaded_rows)),
        l2(of_l2(n.of_operands)),
        finish(kFinishedRow * real(n.finished_rows) + kStoredLine * real(n.stored_lines) +
               kDrain / 4 * real(n.tile_stores) + of_l2(n.of_sums)),
        beyond(of_beyond(n.of_operands) + of_beyond(n.of_sums)),
        packing(kCopiedLine * real(n.copied_lines) + kTurnedLine * real(n.turned_lines) +
                of_l2(n.of_packing) + of_beyond(n.of_packing)) {}

  double total() const { return std::max({products, loads, l2}) + finish + beyond + packing; }
  /// What takes longest.
  const char* bound() const {
    const std::pair<double, const char*> all[] = {
        {products, "products"}, {loads, "loads"},   {l2, "L2"},
        {finish, "finishing"},  {beyond, "beyond"}, {packing, "packing"}};
    return std::ranges::max_element(all)->second;
  }

 private:
  static double real(int64_t n) { return static_cast<double>(n); }
  static double of_l2(const Traffic& t) { return 64 / kL2Bytes * real(t.l2); }
  static double of_beyond(const Traffic& t) { return 64 / kBeyondBytes * real(t.beyond); }
};

}  // namespace quern::bench
