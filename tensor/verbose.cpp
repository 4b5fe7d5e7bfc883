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
    set_verbosity(from_environment());
    now = level.load(std::memory_order_relaxed);
  }
  return static_cast<Verbosity>(now);
}

void set_verbosity(Verbosity to) {
  level.store(static_cast<int>(to), std::memory_order_relaxed);
  detail::set_watcher(detail::kPrinter, to != Verbosity::off);
}

void detail::print_op(const Span& op, int64_t nanoseconds) noexcept {
  print_line("quern_verbose,{},{},{},{},{:.4f}", op.name(), op.kernel(), op.problem(), op.formats(),
             1e-6 * static_cast<double>(nanoseconds));
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
