#include "quern/tensor/span.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <typeinfo>

#include "quern/tensor/check.h"
#include "quern/tensor/events.h"
#include "quern/tensor/parallel.h"
#include "quern/tensor/tasks.h"
#include "quern/tensor/verbose.h"
#include "threads.h"

using namespace quern;
using namespace quern::detail;

namespace {

template <class>
struct Net {};

/// What `body` leaves behind.
template <class Body>
std::vector<Event> recorded(Body body) {
  start_recording("test");
  body();
  stop_recording();
  return take_events();
}

const Event& named(const std::vector<Event>& events, std::string_view name) {
  const auto found = std::ranges::find(events, name, &Event::name);
  REQUIRE(found != events.end());
  return *found;
}

bool inside(const Event& inner, const Event& outer) {
  return inner.begin >= outer.begin && inner.end <= outer.end;
}

}  // namespace

TEST_CASE("span: nobody records, nothing is left") {
  const Span span("unseen");
  CHECK_FALSE(static_cast<bool>(span));
  CHECK(innermost_span == nullptr);
  CHECK(recorded([] {}).empty());
}

TEST_CASE("span: events nest, and keep what they were told") {
  const auto events = recorded([] {
    const Span outer("outer");
    VerboseOp inner("inner");
    REQUIRE(static_cast<bool>(inner));
    inner.set("kernel", std::string("2x3"), std::string("f32"));
    inner.set_work(6, 48);
  });
  REQUIRE(events.size() == 2);
  const Event &inner = events[0], &outer = events[1];
  CHECK(inner.name == "inner");
  CHECK(inner.kernel == "kernel");
  CHECK(inner.problem == "2x3");
  CHECK(inner.formats == "f32");
  CHECK(inner.flop == 6);
  CHECK(inner.bytes == 48);
  CHECK(outer.name == "outer");
  CHECK(inside(inner, outer));
  CHECK(inner.thread == outer.thread);
}

TEST_CASE("span: modules have dotted names, which what is inside of them bears") {
  const auto events = recorded([] {
    const Span root = Span::of_module("", typeid(Net<int>).name());
    CHECK(current_module() == "");
    const Span layer = Span::of_module("layer", "Layer");
    {
      const Span conv = Span::of_module("conv", "Conv");
      const Span op("op");
      CHECK(current_module() == "layer.conv");
    }
    const Span back = Span::of_backward("relu", "elsewhere");
  });
  CHECK(named(events, "Net").module == "");
  CHECK(named(events, "layer").kind == SpanKind::module);
  CHECK(named(events, "op").module == "layer.conv");
  CHECK(named(events, "relu_backward").module == "elsewhere");
}

TEST_CASE("span: cells of a parallel_for are shares of the op, on every thread") {
  for (const int threads : {1, 3}) {
    const test::Threads scope(threads);
    const auto events = recorded([] {
      VerboseOp op("op");
      op.set("kernel", std::string("problem"), {});
      parallel_for(64, [](int64_t) { std::this_thread::yield(); });
    });
    const Event& op = named(events, "op");
    int64_t shares = 0;
    for (const Event& event : events) {
      if (event.kind != SpanKind::kernel) continue;
      ++shares;
      CHECK(event.name == "kernel");
      CHECK(event.op == "op");
      CHECK(event.problem == "problem");
      CHECK(inside(event, op));
    }
    CHECK(shares >= 1);
    CHECK(shares <= threads);
  }
}

TEST_CASE("span: parts lie inside of shares, belong to the op, and know its module") {
  for (const int threads : {1, 3}) {
    const test::Threads scope(threads);
    const auto events = recorded([] {
      const Span module = Span::of_module("layer", "Layer");
      VerboseOp op("op");
      op.set("kernel", std::string("problem"), {});
      parallel_for(64, [](int64_t) {
        const PartSpan part("pack");
        std::this_thread::yield();
      });
    });
    CHECK(std::ranges::count(events, SpanKind::part, &Event::kind) == 64);
    for (const Event& part : events) {
      if (part.kind != SpanKind::part) continue;
      CHECK(part.name == "pack");
      CHECK(part.op == "op");
      CHECK(part.kernel == "kernel");
      CHECK(part.module == "layer");
      CHECK(std::ranges::any_of(events, [&](const Event& share) {
        return share.kind == SpanKind::kernel && share.thread == part.thread && inside(part, share);
      }));
    }
  }
}

TEST_CASE("span: a thread that finds no task waits, until there is one") {
  const test::Threads scope(2);
  const auto nap = [] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); };
  const auto events = recorded([&] {
    const Span op("op");
    with_tasks([&](Tasks& tasks) {
      nap();  // nobody has anything to do but this thread
      tasks.run(nap);
    });
  });
  const Event &op = named(events, "op"), &task = named(events, "task");
  int64_t waited = 0;
  for (const Event& wait : events) {
    if (wait.kind != SpanKind::wait) continue;
    CHECK(wait.name == "wait");
    CHECK(inside(wait, op));
    CHECK((wait.thread != task.thread || wait.end <= task.begin || wait.begin >= task.end));
    waited += wait.end - wait.begin;
  }
  // One thread while the other naps, twice.
  CHECK(waited > 20'000'000);
}

TEST_CASE("span: tasks, and what they do, belong to who gave them") {
  const test::Threads scope(2);
  const auto events = recorded([] {
    const Span module = Span::of_module("layer", "Layer");
    const Span op("op");
    with_tasks([](Tasks& tasks) {
      for (int i = 0; i < 8; ++i)
        tasks.run([] {
          const Span inner("inner");
          parallel_for(4, [](int64_t) { std::this_thread::yield(); });
        });
    });
    CHECK(innermost_span == &op);
  });
  CHECK(std::ranges::count(events, "task", &Event::name) == 8);
  CHECK(std::ranges::count(events, "inner", &Event::name) >= 8);
  for (const Event& event : events) CHECK(event.module == "layer");
  CHECK(named(events, "task").op == "op");
}

TEST_CASE("span: more events than a chunk, of threads that are gone") {
  const auto events = recorded([] {
    std::thread([] {
      for (int i = 0; i < 1000; ++i) const Span span("short");
    }).join();
  });
  CHECK(events.size() == 1000);
  CHECK(std::ranges::is_sorted(events, {}, &Event::begin));
}

TEST_CASE("span: a span that ends after recording does is not in the next one") {
  start_recording("test");
  {
    const Span span("late");
    stop_recording();
    CHECK(take_events().empty());
  }
  CHECK(recorded([] {}).empty());
}

TEST_CASE("span: an exception ends it") {
  const auto events = recorded([] {
    try {
      const Span span("fails");
      throw std::runtime_error("");
    } catch (const std::runtime_error&) {
      CHECK(innermost_span == nullptr);
    }
  });
  CHECK(events.size() == 1);
}

TEST_CASE("span: one recording at a time") {
  start_recording("test");
  CHECK_THROWS_AS(start_recording("test"), Error);
  stop_recording();
  static_cast<void>(take_events());
}
