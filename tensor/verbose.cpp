#include "quern/tensor/verbose.h"

#include <fmt/core.h>

#include <atomic>
#include <cstdlib>

#include "quern/tensor/check.h"

namespace quern {
namespace {

constexpr int kUnset = -1;
std::atomic<int> level{kUnset};

Verbosity from_environment() {
  const char* value = std::getenv("QUERN_VERBOSE");
  const std::string_view word = value == nullptr ? "" : value;
  if (word.empty() || word == "0") return Verbosity::off;
  if (word == "1") return Verbosity::ops;
  check(word == "dispatch", "verbose", "QUERN_VERBOSE: expected 0, 1 or dispatch, got \"{}\"",
        word);
  return Verbosity::dispatch;
}

}  // namespace

Verbosity verbosity() {
  int now = level.load(std::memory_order_relaxed);
  if (now == kUnset) {
    now = static_cast<int>(from_environment());
    level.store(now, std::memory_order_relaxed);
  }
  return static_cast<Verbosity>(now);
}

void set_verbosity(Verbosity to) { level.store(static_cast<int>(to), std::memory_order_relaxed); }

VerboseOp::~VerboseOp() {
  if (!on_) return;
  const std::chrono::duration<double, std::milli> ms = std::chrono::steady_clock::now() - start_;
  fmt::print("quern_verbose,{},{},{},{},{:.4f}\n", op_, kernel_, problem_, formats_, ms.count());
}

void report_refusal(std::string_view family, std::string_view kernel, std::string_view reason) {
  if (verbosity() != Verbosity::dispatch) return;
  fmt::print("quern_verbose,dispatch,{},{},refused: {}\n", family, kernel, reason);
}

void report_choice(std::string_view family, std::string_view kernel) {
  if (verbosity() != Verbosity::dispatch) return;
  fmt::print("quern_verbose,dispatch,{},{},chosen\n", family, kernel);
}

}  // namespace quern
