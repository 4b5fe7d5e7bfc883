// How long a fuzz test goes on: a fixed number of trials, and beyond it for QUERN_FUZZ_SECONDS.
#pragma once
#include <chrono>
#include <cstdint>
#include <cstdlib>

namespace quern {

class FuzzTrials {
 public:
  explicit FuzzTrials(int64_t at_least) : at_least_(at_least) {
    if (const char* seconds = std::getenv("QUERN_FUZZ_SECONDS")) seconds_ = std::atof(seconds);
  }

  /// True if one more is due: the trial with this index.
  bool more(int64_t index) const {
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin_;
    return index < at_least_ || elapsed.count() < seconds_;
  }

 private:
  int64_t at_least_;
  double seconds_ = 0;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace quern
