// The rows of the table: who was at work, moment by moment.
#include <algorithm>
#include <map>
#include <unordered_map>

#include "quern/nn/profiler_trace.h"

namespace quern::detail {
namespace {

/// Sorts by begin, those around others first.
void sort_nested(std::vector<const Event*>& events) {
  std::ranges::stable_sort(events, [](const Event* a, const Event* b) {
    return a->begin != b->begin ? a->begin < b->begin : a->end > b->end;
  });
}

class Rows {
 public:
  explicit Rows(ProfileBy by) : by_(by) {}

  size_t of(const Event& e) {
    switch (by_) {
      case ProfileBy::op: return row(of_module(e) ? "(modules)" : e.op.empty() ? e.name : e.op);
      case ProfileBy::kernel:
        return row(of_module(e) ? "(modules)" : e.kernel.empty() ? e.op : e.kernel);
      case ProfileBy::module: return row(e.module.empty() ? "(outside of modules)" : e.module);
      case ProfileBy::shape: break;
    }
    if (of_module(e)) return row("(modules)");
    std::string name(e.op);
    for (const std::string_view part : {e.problem, e.formats})
      if (!part.empty()) name.append(" ").append(part);
    return row(name);
  }
  size_t outside() { return row("(outside of spans)"); }
  ProfileRow& operator[](size_t i) { return rows_[i]; }
  std::vector<ProfileRow> take() { return std::move(rows_); }

 private:
  static bool of_module(const Event& e) { return e.kind == SpanKind::module; }
  size_t row(std::string_view name) {
    const auto [found, is_new] = index_.try_emplace(std::string(name), rows_.size());
    if (is_new) rows_.push_back({.name = std::string(name)});
    return found->second;
  }

  ProfileBy by_;
  std::vector<ProfileRow> rows_;
  std::unordered_map<std::string, size_t> index_;
};

constexpr size_t kNothing = static_cast<size_t>(-1);

/// From `at` on, the innermost span of `thread` is of this row.
struct Change {
  int64_t at;
  int thread;
  size_t row;
};

/// Adds calls, totals and work of a thread's events, and the changes of its innermost row.
void walk_thread(const std::vector<const Event*>& events, Rows& rows,
                 std::vector<Change>& changes) {
  struct Open {
    const Event* event;
    size_t row;
  };
  std::vector<Open> stack;
  const auto close_until = [&](int64_t time) {
    while (!stack.empty() && stack.back().event->end <= time) {
      const Event& closed = *stack.back().event;
      stack.pop_back();
      changes.push_back({closed.end, closed.thread, stack.empty() ? kNothing : stack.back().row});
    }
  };
  for (const Event* event : events) {
    close_until(event->begin);
    const size_t row = rows.of(*event);
    if (event->kind != SpanKind::kernel) {
      rows[row].flop += event->flop, rows[row].bytes += event->bytes;
      if (event->kernel.find("bf16") != event->kernel.npos) rows[row].bf16_flop += event->flop;
      if (std::ranges::find(stack, row, &Open::row) == stack.end()) {
        ++rows[row].calls;
        rows[row].total += event->end - event->begin;
      }
    }
    stack.push_back({event, row});
    changes.push_back({event->begin, event->thread, row});
  }
  close_until(std::numeric_limits<int64_t>::max());
}

/// Shares the time of the steps among rows.
void add_self_times(const Trace& trace, std::vector<Change> changes, Rows& rows) {
  std::ranges::stable_sort(changes, {}, &Change::at);
  std::map<int, size_t> at_work;  // by thread
  const auto spend = [&](int64_t time) {
    const double part =
        static_cast<double>(time) / static_cast<double>(std::max<size_t>(1, at_work.size()));
    if (at_work.empty()) rows[rows.outside()].self += part;
    for (const auto& [thread, row] : at_work) rows[row].self += part;
  };
  auto change = changes.begin();
  for (const Trace::Step& step : trace.steps) {
    int64_t now = step.begin;
    for (; change != changes.end() && change->at <= step.end; ++change) {
      if (change->at > now) spend(change->at - now);
      now = std::max(now, change->at);
      if (change->row == kNothing) at_work.erase(change->thread);
      else at_work[change->thread] = change->row;
    }
    if (step.end > now) spend(step.end - now);
  }
}

}  // namespace

std::vector<ProfileRow> profile_rows(const Trace& trace, ProfileBy by) {
  std::map<int, std::vector<const Event*>> threads;
  for (const Event& event : trace.events) threads[event.thread].push_back(&event);
  Rows rows(by);
  std::vector<Change> changes;
  for (auto& [thread, events] : threads) {
    sort_nested(events);
    walk_thread(events, rows, changes);
  }
  add_self_times(trace, std::move(changes), rows);
  std::vector<ProfileRow> result = rows.take();
  std::ranges::stable_sort(result, std::greater<>(), &ProfileRow::self);
  return result;
}

}  // namespace quern::detail
