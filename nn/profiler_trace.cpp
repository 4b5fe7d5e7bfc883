#include "quern/nn/profiler_trace.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

namespace quern::detail {
namespace {

constexpr std::pair<const char*, ProfileBy> kTables[] = {{"op", ProfileBy::op},
                                                         {"module", ProfileBy::module},
                                                         {"shape", ProfileBy::shape},
                                                         {"kernel", ProfileBy::kernel}};

std::string quoted(std::string_view text) { return nlohmann::ordered_json(text).dump(); }

double microseconds(int64_t nanoseconds) { return 1e-3 * static_cast<double>(nanoseconds); }

const char* category(SpanKind kind) {
  switch (kind) {
    case SpanKind::module: return "module";
    case SpanKind::op: return "cpu_op";
    case SpanKind::kernel: return "kernel";
    case SpanKind::part: return "part";
    case SpanKind::wait: break;
  }
  return "wait";
}

/// An array of trace events, by time.
class ChromeEvents {
 public:
  explicit ChromeEvents(int64_t start) : start_(start) {}

  void add_name(std::string_view what, int thread, std::string_view name) {
    add(std::numeric_limits<int64_t>::min(),
        R"({{"ph":"M","name":"{}","pid":{},"tid":{},"args":{{"name":{}}}}})", what, pid_, thread,
        quoted(name));
  }
  void add(const Trace::Step& step) {
    add_complete(step.begin, step.end, step.thread, fmt::format("ProfilerStep#{}", step.number),
                 "user_annotation", "");
  }
  void add(const Event& event) {
    std::string args;
    const auto tell = [&](const char* name, std::string_view value) {
      if (!value.empty())
        args += fmt::format(R"({}"{}":{})", args.empty() ? "" : ",", name, quoted(value));
    };
    if (event.op != event.name) tell("op", event.op);
    tell("kernel", event.kernel), tell("problem", event.problem), tell("formats", event.formats);
    tell("module", event.module);
    if (event.flop > 0 || event.bytes > 0)
      args += fmt::format(R"({}"flop":{},"bytes":{})", args.empty() ? "" : ",", event.flop,
                          event.bytes);
    add_complete(event.begin, event.end, event.thread, event.name, category(event.kind), args);
    if (event.kind == SpanKind::op)
      add(event.end,
          R"({{"ph":"C","name":"memory in use","pid":{},"ts":{:.3f},"args":{{"bytes":{}}}}})", pid_,
          microseconds(event.end - start_), event.memory);
  }
  /// The longer of what begins at the same time comes first.
  std::string array() {
    std::ranges::stable_sort(lines_, {}, [](const Line& l) { return std::pair(l.at, -l.length); });
    std::string text = "[";
    for (const Line& line : lines_)
      text.append(&line == &lines_[0] ? "\n" : ",\n").append(line.text);
    return text + "\n]";
  }

 private:
  struct Line {
    int64_t at, length;
    std::string text;
  };

  template <class... Args>
  void add(int64_t at, fmt::format_string<Args...> format, Args&&... args) {
    lines_.push_back({at, 0, fmt::format(format, std::forward<Args>(args)...)});
  }
  void add_complete(int64_t begin, int64_t end, int thread, std::string_view name,
                    std::string_view category, std::string_view args) {
    add(begin,
        R"({{"ph":"X","cat":"{}","name":{},"pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},)"
        R"("args":{{{}}}}})",
        category, quoted(name), pid_, thread, microseconds(begin - start_),
        microseconds(end - begin), args);
    lines_.back().length = end - begin;
  }

  const int64_t start_;
  const int pid_ = static_cast<int>(getpid());
  std::vector<Line> lines_;
};

nlohmann::ordered_json rows_as_json(const Trace& trace, ProfileBy by, const ProfilerPeaks& peaks) {
  auto rows = nlohmann::ordered_json::array();
  for (const ProfileRow& row : profile_rows(trace, by, peaks)) {
    rows.push_back({{"name", row.name},
                    {"calls", row.calls},
                    {"total_us", microseconds(row.total)},
                    {"self_us", 1e-3 * row.self},
                    {"flop", row.flop},
                    {"bf16_flop", row.bf16_flop},
                    {"bytes", row.bytes},
                    {"bound", nullptr},
                    {"least_us", 1e-3 * row.least_time()},
                    {"share_of_bound", nullptr}});
    if (row.bound().empty() || row.self <= 0) continue;
    rows.back()["bound"] = row.bound();
    rows.back()["share_of_bound"] = row.share_of_bound();
  }
  return rows;
}

}  // namespace

double Trace::seconds() const {
  int64_t sum = 0;
  for (const Step& step : steps) sum += step.end - step.begin;
  return 1e-9 * static_cast<double>(sum);
}

std::string chrome_trace(const Trace& trace, const ProfilerPeaks& peaks) {
  ChromeEvents events(trace.steps.empty() ? 0 : trace.steps[0].begin);
  std::set<int> threads;
  for (const Event& event : trace.events) threads.insert(event.thread);
  for (const Trace::Step& step : trace.steps) threads.insert(step.thread);
  events.add_name("process_name", 0, "quern");
  for (const int thread : threads) {
    const bool steps =
        std::ranges::find(trace.steps, thread, &Trace::Step::thread) != trace.steps.end();
    events.add_name("thread_name", thread, steps ? "main" : fmt::format("thread {}", thread));
  }
  for (const Trace::Step& step : trace.steps) events.add(step);
  for (const Event& event : trace.events) events.add(event);

  nlohmann::ordered_json summary = {
      {"steps", trace.steps.size()}, {"step_us", 1e6 * trace.seconds()}, {"peaks", nullptr}};
  if (peaks.threads > 0) summary["peaks"] = nlohmann::ordered_json::parse(peaks.json());
  for (const auto& [name, by] : kTables) summary[name] = rows_as_json(trace, by, peaks);
  return fmt::format(
      "{{\"schemaVersion\":1,\"displayTimeUnit\":\"ms\",\n\"summary\":{},\n\"traceEvents\":{}}}\n",
      summary.dump(), events.array());
}

std::string profile_table(const Trace& trace, ProfileBy by, const ProfilerPeaks& peaks) {
  const std::vector<ProfileRow> rows = profile_rows(trace, by, peaks);
  size_t width = 20;
  for (const ProfileRow& row : rows) width = std::max(width, row.name.size());
  const double all = 1e9 * trace.seconds();
  const auto number = [](double value, int digits, const char* unit = "") {
    return std::isfinite(value) && value > 0 ? fmt::format("{:.{}f}{}", value, digits, unit) : "-";
  };
  constexpr const char* kLine =
      "{:{}} {:>8} {:>11} {:>11} {:>7} {:>9} {:>6} {:>8} {:>6} {:>10} {:>5}\n";
  std::string text = fmt::format(fmt::runtime(kLine), kTables[static_cast<size_t>(by)].first, width,
                                 "calls", "total ms", "self ms", "self", "GFLOP/s", "peak", "GB/s",
                                 "memory", "bound", "of it");
  double self = 0;
  for (const ProfileRow& row : rows) {
    self += row.self;
    const double flop = static_cast<double>(row.flop), bf16 = static_cast<double>(row.bf16_flop);
    const double bytes = static_cast<double>(row.bytes);
    const double at_peak = (bf16 > 0 ? bf16 / peaks.gflops(true) : 0) +
                           (flop > bf16 ? (flop - bf16) / peaks.gflops(false) : 0);
    const double memory = peaks.memory.empty() ? 0 : bytes / peaks.memory.back().gbytes;
    const auto milliseconds = [](double time) { return fmt::format("{:.3f}", 1e-6 * time); };
    text += fmt::format(fmt::runtime(kLine), row.name, width, row.calls,
                        milliseconds(static_cast<double>(row.total)), milliseconds(row.self),
                        number(100 * row.self / all, 2, "%"), number(flop / row.self, 1),
                        number(100 * at_peak / row.self, 0, "%"), number(bytes / row.self, 1),
                        number(100 * memory / row.self, 0, "%"),
                        row.bound().empty() ? "-" : row.bound(),
                        number(100 * row.share_of_bound(), 0, "%"));
  }
  text +=
      fmt::format("{:{}} {:>8} {:>11.3f} {:>11.3f}\n", fmt::format("{} steps", trace.steps.size()),
                  width, "", 1e-6 * all, 1e-6 * self);
  return peaks.threads > 0 ? text + "\nPeaks on " + peaks.describe() + "\n" : text;
}

}  // namespace quern::detail
