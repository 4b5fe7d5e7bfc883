// What a run shows and records: a progress bar on a terminal, plain lines in a pipe, and JSON.
#pragma once
#include <chrono>
#include <string>
#include <vector>

#include "options.h"
#include "price.h"
#include "progress.h"
#include "quern/tensor/shape.h"

namespace resnet50 {

class Report {
 public:
  /// `input`: the shape of a batch. `first_step`: those that an earlier run has done.
  Report(const Options& options, const quern::Shape& input, int64_t parameters,
         int64_t first_step = 0);
  ~Report();  // leaves the line of an unfinished progress bar
  Report(const Report&) = delete;
  Report& operator=(const Report&) = delete;

  // Around each step, in this order.
  void begin_step();
  void data_ready();
  struct Times {
    double step, data;  // seconds
  };
  Times end_step(double loss);
  /// A line of what an epoch came to, and how long the rest will take.
  void end_epoch(int64_t epoch, const Tally& tally);

  /// Prints the summary.
  void finish();
  /// The fields of --json.
  std::string json() const;

 private:
  using Clock = std::chrono::steady_clock;

  /// The last value and the mean of all.
  struct Meter {
    double last = 0, sum = 0;
    int64_t count = 0;
    void add(double value) { last = value, sum += value, ++count; }
    double mean() const { return sum / static_cast<double>(count); }
  };

  int64_t done() const { return first_step_ + static_cast<int64_t>(losses_.size()); }
  void leave_bar() const;  ///< the line of one that is not full
  void print_line(int64_t step) const;
  void print_bar(int64_t done) const;
  double samples_per_second() const;
  Price price() const;  ///< where one is given

  const Options options_;
  const quern::Shape input_;
  const bool terminal_;
  const int64_t first_step_;
  Clock::time_point begin_, data_ready_;
  Meter time_, data_, loss_;  // seconds, seconds, nats
  std::vector<double> step_ms_, losses_;
  bool finished_ = false;
};

}  // namespace resnet50
