// QUERN_VERBOSE: which kernel ran, on what, how long. 1: a line an op on standard output,
//   quern_verbose,conv2d_fwd,<kernel>,<problem>,<formats>,<ms>
// dispatch: also, for each choice of a kernel, why every faster one was refused.
// A line that cannot be written is left out.
#pragma once
#include <string_view>

#include "quern/tensor/span.h"

namespace quern {

/// How much is printed.
enum class Verbosity : int { off, ops, dispatch };
/// From QUERN_VERBOSE at first use (unset, "" and 0: off). Error: any other word.
Verbosity verbosity();
void set_verbosity(Verbosity level);  ///< from here on, whatever QUERN_VERBOSE says

/// A span of an op that gets a line when it goes out of scope.
class VerboseOp : public Span {
 public:
  /// `op`: a literal.
  explicit VerboseOp(std::string_view op)
      : Span(SpanKind::op, op, detail::kPrinter | detail::kRecorder) {}
};

/// "quern_verbose,dispatch,family,kernel,refused: reason"; prints only at Verbosity::dispatch.
void report_refusal(std::string_view family, std::string_view kernel, std::string_view reason);
/// "quern_verbose,dispatch,family,kernel,chosen", likewise.
void report_choice(std::string_view family, std::string_view kernel);

namespace detail {
/// The line of an op that took so long.
void print_op(const Span& op, int64_t nanoseconds) noexcept;
}  // namespace detail

}  // namespace quern
