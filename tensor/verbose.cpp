#include "quern/tensor/verbose.h"

#include <atomic>
#include <cstdio>
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

/// Leaves out a line that cannot be written, or made for want of memory: no op fails because
/// someone watches. Who must know finds the failure in ferror(stdout).
template <class... Args>
void print_line(fmt::format_string<const Args&...> format, const Args&... args) noexcept try {
  const std::string line = fmt::format(format, args...) + '\n';
  std::fwrite(line.data(), 1, line.size(), stdout);
} catch (...) {
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
  print_line("quern_verbose,{},{},{},{},{:.4f}", op_, kernel_, problem_, formats_, ms.count());
}

void report_refusal(std::string_view family, std::string_view kernel, std::string_view reason) {
  if (verbosity() != Verbosity::dispatch) return;
  print_line("quern_verbose,dispatch,{},{},refused: {}", family, kernel, reason);
}

void report_choice(std::string_view family, std::string_view kernel) {
  if (verbosity() != Verbosity::dispatch) return;
  print_line("quern_verbose,dispatch,{},{},chosen", family, kernel);
}

}  // namespace quern
