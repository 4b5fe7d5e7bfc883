// The rows of the table: who was at work, moment by moment.
#include <algorithm>
#include <map>
#include <numeric>
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
  Rows(ProfileBy by, const ProfilerPeaks& peaks) : by_(by), peaks_(peaks) {}

  size_t of(const Event& e) {
    switch (by_) {
      case ProfileBy::op: return row(of_module(e) ? "(modules)" : e.op.empty() ? e.name : e.op);
      case ProfileBy::kernel:
        return row(of_module(e)                                   ? "(modules)"
                   : e.kind == SpanKind::part || e.kernel.empty() ? e.name
                                                                  : e.kernel);
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
  size_t waiting() { return row("(waiting)"); }
  void count(size_t row, const Event& e) {
    ++rows_[row].calls;
    rows_[row].total += e.end - e.begin;
  }
  void add_work(size_t row, const Event& e) {
    const bool bf16 = e.kernel.find("bf16") != e.kernel.npos;
    rows_[row].flop += e.flop, rows_[row].bytes += e.bytes;
    if (bf16) rows_[row].bf16_flop += e.flop;
    const ProfilerPeaks::Bound bound = peaks_.bound(e.flop, bf16, e.bytes);
    if (!bound.by.empty()) rows_[row].least[bound.by] += 1e9 * bound.seconds;
  }
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
  const ProfilerPeaks& peaks_;
  std::vector<ProfileRow> rows_;
  std::unordered_map<std::string, size_t> index_;
};

constexpr size_t kNothing = static_cast<size_t>(-1), kWaiting = kNothing - 1;

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
    const bool waits = event->kind == SpanKind::wait;
    if (waits) rows.count(rows.waiting(), *event);
    const size_t row = waits ? kWaiting : rows.of(*event);
    if (!waits && event->kind != SpanKind::kernel) {
      rows.add_work(row, *event);
      if (std::ranges::find(stack, row, &Open::row) == stack.end()) rows.count(row, *event);
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
    const auto works = [](const auto& thread) { return thread.second != kWaiting; };
    const auto threads = static_cast<double>(std::ranges::count_if(at_work, works));
    if (threads == 0)
      rows[at_work.empty() ? rows.outside() : rows.waiting()].self += static_cast<double>(time);
    for (const auto& thread : at_work)
      if (works(thread)) rows[thread.second].self += static_cast<double>(time) / threads;
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

double ProfileRow::least_time() const {
  return std::transform_reduce(least.begin(), least.end(), 0.0, std::plus<>(),
                               [](const auto& bound) { return bound.second; });
}

std::string_view ProfileRow::bound() const {
  if (least.empty()) return {};
  return std::ranges::max_element(least, {}, [](const auto& b) { return b.second; })->first;
}

std::vector<ProfileRow> profile_rows(const Trace& trace, ProfileBy by, const ProfilerPeaks& peaks) {
  std::map<int, std::vector<const Event*>> threads;
  for (const Event& event : trace.events) threads[event.thread].push_back(&event);
  Rows rows(by, peaks);
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
