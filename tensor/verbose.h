// QUERN_VERBOSE: which kernel ran, on what, how long. 1: a line an op on standard output,
//   quern_verbose,conv2d_fwd,<kernel>,<problem>,<formats>,<ms>
// dispatch: also, for each choice of a kernel, why every faster one was refused.
// A line that cannot be written is left out.
#pragma once
#include <chrono>
#include <string>
#include <string_view>

namespace quern {

enum class Verbosity : int { off, ops, dispatch };
/// From QUERN_VERBOSE at first use (unset, "" and 0: off). Error: any other word.
Verbosity verbosity();
void set_verbosity(Verbosity level);

/// Prints one line for the op when it goes out of scope. Strings are only made when someone looks:
///   VerboseOp line("conv2d_fwd");
///   if (line) line.set(kernel.name, problem.to_string(), "f32:channels_last");
class VerboseOp {
 public:
  explicit VerboseOp(std::string_view op) : op_(op), on_(verbosity() != Verbosity::off) {
    if (on_) start_ = std::chrono::steady_clock::now();
  }
  ~VerboseOp();
  VerboseOp(const VerboseOp&) = delete;
  VerboseOp& operator=(const VerboseOp&) = delete;
  explicit operator bool() const { return on_; }
  void set(std::string_view kernel, std::string problem, std::string formats) {
    kernel_ = kernel, problem_ = std::move(problem), formats_ = std::move(formats);
  }

 private:
  std::string_view op_, kernel_;
  std::string problem_, formats_;
  bool on_;
  std::chrono::steady_clock::time_point start_;
};

/// "quern_verbose,dispatch,<family>,<kernel>,refused: <reason>" or "...,chosen"; prints only at
/// Verbosity::dispatch.
void report_refusal(std::string_view family, std::string_view kernel, std::string_view reason);
void report_choice(std::string_view family, std::string_view kernel);

}  // namespace quern
