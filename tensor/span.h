// Spans of time: what runs when, on which thread, inside of what. Steps, modules, ops and kernels
// announce themselves by a Span; QUERN_VERBOSE prints some of them (verbose.h), a Profiler
// (nn/profiler.h) records all. Where nobody watches, a Span is a load and a branch.
#pragma once
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

namespace quern {

/// What a span is of.
enum class SpanKind : uint8_t {
  module,  ///< a call of an nn::Module
  op,      ///< what is asked for: an op, one of its parts, a backward pass
  kernel,  ///< a thread's share of the cells of a parallel_for
  part,    ///< what is apart in such a share, as packing
  wait,    ///< a thread that finds nothing to do
};

namespace detail {

/// Who looks at spans: bits. Negative: QUERN_VERBOSE has not been read.
enum Watcher : int { kPrinter = 1, kRecorder = 2 };
inline std::atomic<int> watchers{-1};
/// The same, once QUERN_VERBOSE has been read. Error: its.
int ask_watchers();
void set_watcher(Watcher who, bool on);
inline bool watched_by(int who) {
  const int now = watchers.load(std::memory_order_relaxed);
  return now != 0 && ((now > 0 ? now : ask_watchers()) & who) != 0;
}

}  // namespace detail

/// From here to the end of the scope, on this thread:
///   const Span span("augment");
/// Strings are only made when someone looks:
///   if (span) span.set(kernel.name, problem.to_string(), "f32:channels_last");
class Span {
 public:
  /// Of an op by this name, a literal.
  explicit Span(std::string_view name) : Span(SpanKind::op, name, detail::kRecorder) {}
  /// A call of the module that its parent knows by `name`, dots and all. Where it has none, as the
  /// root: of the `type`, as std::type_info names it; a null one is no module's.
  static Span of_module(std::string_view name, const char* type = nullptr) { return {name, type}; }
  /// The backward pass of an op that was called in a module.
  static Span of_backward(std::string_view op, std::string_view module) {
    return {SpanKind::op, op, detail::kRecorder, "_backward", module};
  }
  ~Span() {
    if (watched_ != 0) close();
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

  /// Does someone look at it?
  explicit operator bool() const { return watched_ != 0; }
  /// What runs, on what: shown beside the name.
  void set(std::string_view kernel, std::string problem, std::string formats) {
    kernel_ = kernel, problem_ = std::move(problem), formats_ = std::move(formats);
  }
  /// What it has to do at least: operations on floating numbers, and bytes, each operand read or
  /// written once. Kernels that save operations, as Winograd's, have those of the definition.
  void set_work(int64_t flop, int64_t bytes) { flop_ = flop, bytes_ = bytes; }

  std::string_view name() const { return name_; }          ///< of the op
  std::string_view kernel() const { return kernel_; }      ///< as set(); "" before
  const std::string& problem() const { return problem_; }  ///< as set(); "" before
  const std::string& formats() const { return formats_; }  ///< as set(); "" before
  /// The dotted name of the innermost module, such as "layer1.0.conv2".
  std::string_view module() const { return module_; }

 protected:
  /// Opens if one of `watchers` (bits) looks. `suffix`: after the name in the module's.
  Span(SpanKind kind, std::string_view name, int watchers, std::string_view suffix = {},
       std::string_view module = {})
      : name_(name), kind_(kind) {
    if (detail::watched_by(watchers)) open(watchers, suffix, module);
  }

 private:
  Span(std::string_view name, const char* type) : name_(name), kind_(SpanKind::module) {
    if (detail::watched_by(detail::kRecorder) && (type || !name.empty())) open_module(type);
  }
  void open(int watchers, std::string_view suffix, std::string_view module) noexcept;
  void open_module(const char* type) noexcept;
  void close() noexcept;

  std::string_view name_, kernel_, module_;
  std::string problem_, formats_;
  int64_t flop_ = 0, bytes_ = 0;
  const Span* parent_ = nullptr;
  int64_t begin_ = 0;
  int watched_ = 0;  // by whom of those it is for
  SpanKind kind_;
};

namespace detail {

/// The innermost span of this thread; null: none, or nobody records.
inline thread_local const Span* innermost_span = nullptr;

/// The module that this thread is in, by its dotted name, which stays. "": none, or nobody records.
inline std::string_view current_module() {
  return innermost_span == nullptr ? std::string_view() : innermost_span->module();
}

/// Makes `span`, of whatever thread, the innermost of this one until the end of its scope.
class InsideSpan {
 public:
  explicit InsideSpan(const Span* span) { innermost_span = span; }
  ~InsideSpan() { innermost_span = before_; }
  InsideSpan(const InsideSpan&) = delete;
  InsideSpan& operator=(const InsideSpan&) = delete;

 private:
  const Span* const before_ = innermost_span;
};

/// A thread's share in the work of a span, which some other thread may have opened and which is
/// still open.
class SharedSpan {
 public:
  /// Of the innermost span.
  SharedSpan() : on_(watched_by(kRecorder)), of_(innermost_span) {}
  bool on() const { return on_; }
  const Span* span() const { return of_; }
  static int64_t now();
  /// Records a share. `name`: empty, the kernel's.
  void record(SpanKind kind, int64_t begin, int64_t end, std::string_view name = {}) const noexcept;

 private:
  bool on_;
  const Span* of_;
};

}  // namespace detail

/// What is apart in a thread's share of a kernel, from here to the end of the scope:
///   const PartSpan part("pack");
/// Its time is the op's, but the kernel's no more: by kernel, parts have rows of their own.
class PartSpan {
 public:
  /// `name`: a literal.
  explicit PartSpan(const char* name) : name_(name) {
    if (of_.on()) begin_ = detail::SharedSpan::now();
  }
  ~PartSpan() {
    if (of_.on()) of_.record(SpanKind::part, begin_, detail::SharedSpan::now(), name_);
  }
  PartSpan(const PartSpan&) = delete;
  PartSpan& operator=(const PartSpan&) = delete;

 private:
  const detail::SharedSpan of_;
  const char* name_;
  int64_t begin_ = 0;
};

}  // namespace quern
