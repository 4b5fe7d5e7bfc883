// How the steps of the lessons are timed.
#pragma once
#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <vector>

#include "clock.h"

namespace quern::lessons {

/// The median of as many runs as a turn of so many seconds has, two at least; of a first one that
/// takes longer than that, itself.
template <class F>
double median_seconds(double turn, F f) {
  std::vector<double> seconds{bench::seconds_of(f)};
  if (seconds[0] > turn) return seconds[0];
  seconds.clear();  // the first one also fetched memory
  for (double all = 0; all < turn || seconds.size() < 2; all += seconds.back())
    seconds.push_back(bench::seconds_of(f));
  std::ranges::sort(seconds);
  return seconds[seconds.size() / 2];
}

/// How rows take turns, by the command line.
struct Turns {
  int rounds = 5;
  double seconds = 0.2;

  explicit Turns(CLI::App& app) {
    app.add_option("--rounds", rounds, "How often the steps take turns [5]")
        ->check(CLI::PositiveNumber);
    app.add_option("--seconds", seconds, "Length of a turn [0.2]")->check(CLI::PositiveNumber);
  }
};

/// A row of the table, and how to time it for a turn.
struct Row {
  nlohmann::json json;
  double flop;
  std::function<double(double turn)> seconds;
  std::vector<double> rounds = {};
};

/// Rows take turns, so that what disturbs the machine for a while disturbs them all. Of a row that
/// takes long, one round is enough.
inline void time_rows(std::vector<Row>& rows, const Turns& turns) {
  constexpr double kLong = 1;  // seconds
  for (int round = 0; round < turns.rounds; ++round)
    for (Row& row : rows)
      if (round == 0 || row.rounds[0] < kLong) row.rounds.push_back(row.seconds(turns.seconds));
  for (Row& row : rows) {
    std::ranges::sort(row.rounds);
    const double seconds = row.rounds[row.rounds.size() / 2];
    row.json["seconds"] = seconds;
    row.json["gflops"] = 1e-9 * row.flop / seconds;
  }
}

}  // namespace quern::lessons
