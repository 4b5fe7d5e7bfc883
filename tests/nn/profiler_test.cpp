#include "quern/nn/profiler.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <numeric>
#include <thread>

#include "quern/nn/activation.h"
#include "quern/nn/linear.h"
#include "quern/nn/profiler_trace.h"
#include "quern/nn/sequential.h"
#include "quern/ops/sum.h"
#include "quern/tensor/random.h"
#include "temporary_folder.h"

using namespace quern;
using namespace quern::detail;
using quern::testing::TemporaryFolder;

namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

const ProfileRow& row(const std::vector<ProfileRow>& rows, std::string_view name) {
  const auto found = std::ranges::find(rows, name, &ProfileRow::name);
  REQUIRE_MESSAGE(found != rows.end(), name);
  return *found;
}

double sum_of_selves(const std::vector<ProfileRow>& rows) {
  return std::transform_reduce(rows.begin(), rows.end(), 0.0, std::plus<>(),
                               [](const ProfileRow& r) { return r.self; });
}

Event event(std::string_view name, int thread, int64_t begin, int64_t end,
            SpanKind kind = SpanKind::op) {
  return {.kind = kind, .thread = thread, .begin = begin, .end = end, .name = name, .op = name};
}

}  // namespace

TEST_CASE("profiler: self times of one thread are what is left by what is inside") {
  Trace trace;
  trace.steps = {{0, 0, 100, 0}};
  trace.events = {event("inner", 0, 20, 30), event("inner", 0, 40, 45), event("outer", 0, 10, 60),
                  event("outer", 0, 70, 80)};
  trace.events[0].flop = 50, trace.events[1].bytes = 8;
  const auto rows = profile_rows(trace, ProfileBy::op);
  CHECK(row(rows, "outer").calls == 2);
  CHECK(row(rows, "outer").total == 60);
  CHECK(row(rows, "outer").self == 45);
  CHECK(row(rows, "inner").calls == 2);
  CHECK(row(rows, "inner").total == 15);
  CHECK(row(rows, "inner").self == 15);
  CHECK(row(rows, "inner").flop == 50);
  CHECK(row(rows, "inner").bytes == 8);
  CHECK(row(rows, "(outside of spans)").self == 40);
  CHECK(rows[0].name == "outer");
  CHECK(sum_of_selves(rows) == 100);
}

TEST_CASE(
    "profiler: threads share a moment, cells are their op's, time between steps is nobody's") {
  Trace trace;
  trace.steps = {{0, 0, 100, 0}, {1, 200, 300, 0}};
  trace.events = {event("a", 0, 0, 100), event("b", 1, 20, 60),
                  event("a", 2, 60, 80, SpanKind::kernel), event("a", 0, 200, 300)};
  const auto rows = profile_rows(trace, ProfileBy::op);
  CHECK(row(rows, "a").self == 180);
  CHECK(row(rows, "b").self == 20);
  CHECK(row(rows, "a").calls == 2);
  CHECK(row(rows, "a").total == 200);
  CHECK(sum_of_selves(rows) == 200);
}

TEST_CASE("profiler: an op inside of itself counts once") {
  Trace trace;
  trace.steps = {{0, 0, 10, 0}};
  trace.events = {event("copy_", 0, 2, 8), event("copy_", 0, 0, 10)};
  const auto rows = profile_rows(trace, ProfileBy::op);
  CHECK(row(rows, "copy_").calls == 1);
  CHECK(row(rows, "copy_").total == 10);
  CHECK(row(rows, "copy_").self == 10);
}

TEST_CASE("profiler: a thread that waits takes no part of a moment") {
  Trace trace;
  trace.steps = {{0, 0, 100, 0}};
  trace.events = {event("waits", 0, 0, 100), event("wait", 0, 20, 90, SpanKind::wait),
                  event("works", 1, 10, 80)};
  const auto rows = profile_rows(trace, ProfileBy::op);
  CHECK(row(rows, "waits").self == 10 + 5 + 10);  // 10 to 20 are shared
  CHECK(row(rows, "works").self == 5 + 60);
  CHECK(row(rows, "(waiting)").self == 10);  // 80 to 90: nobody works
  CHECK(row(rows, "(waiting)").calls == 1);
  CHECK(row(rows, "(waiting)").total == 70);
  CHECK(sum_of_selves(rows) == 100);
}

TEST_CASE("profiler: parts are the op's, and rows of their own by kernel") {
  Trace trace;
  trace.steps = {{0, 0, 100, 0}};
  Event op = event("conv2d_fwd", 0, 0, 100), share = op, part = op;
  share.kind = SpanKind::kernel, share.begin = 10, share.end = 90, share.name = "tile";
  part.kind = SpanKind::part, part.begin = 20, part.end = 50, part.name = "pack";
  trace.events = {part, share, op};
  for (Event& each : trace.events) each.kernel = "tile", each.problem = "2x3";
  trace.events[2].flop = 8;
  CHECK(row(profile_rows(trace, ProfileBy::op), "conv2d_fwd").self == 100);
  CHECK(row(profile_rows(trace, ProfileBy::op), "conv2d_fwd").calls == 1);
  CHECK(row(profile_rows(trace, ProfileBy::shape), "conv2d_fwd 2x3").self == 100);
  const auto kernels = profile_rows(trace, ProfileBy::kernel);
  CHECK(row(kernels, "tile").self == 70);
  CHECK(row(kernels, "tile").flop == 8);
  CHECK(row(kernels, "pack").self == 30);
  CHECK(row(kernels, "pack").total == 30);
  CHECK(row(kernels, "pack").calls == 1);
}

TEST_CASE("profiler: what bounds a row is what its calls take longest for") {
  const ProfilerPeaks peaks{
      .threads = 2,
      .arithmetic = {{"avx512", false, 100}, {"avx2", false, 50}, {"amx", true, 200}},
      .memory = {{"L2", 1000, 40}, {"memory", 1'000'000, 10}}};
  const auto check_bound = [&](int64_t flop, bool bf16, int64_t bytes, std::string_view by,
                               double nanoseconds) {
    const ProfilerPeaks::Bound bound = peaks.bound(flop, bf16, bytes);
    CHECK(bound.by == by);
    CHECK(1e9 * bound.seconds == doctest::Approx(nanoseconds));
  };
  check_bound(5000, false, 0, "arithmetic", 50);
  check_bound(5000, true, 400, "arithmetic", 25);
  check_bound(5002, true, 1000, "arithmetic", 25.01);
  check_bound(4000, true, 1000, "L2", 25);
  check_bound(4000, true, 1001, "memory", 100.1);
  check_bound(0, false, 2'000'000, "memory", 200'000);
  check_bound(0, false, 0, "", 0);
  CHECK(ProfilerPeaks{}.bound(5000, false, 1000).by.empty());

  Trace trace;
  trace.steps = {{0, 0, 400, 0}};
  trace.events = {event("a", 0, 0, 100), event("a", 0, 100, 200), event("a", 0, 200, 300),
                  event("b", 0, 300, 400)};
  trace.events[0].flop = 5000;                               // 50 of arithmetic
  trace.events[1].flop = 5000, trace.events[1].bytes = 800;  // the same
  trace.events[2].flop = 500, trace.events[2].bytes = 1600;  // 160 of memory
  const auto rows = profile_rows(trace, ProfileBy::op, peaks);
  CHECK(row(rows, "a").bound() == "memory");
  CHECK(row(rows, "a").least_time() == doctest::Approx(260));
  CHECK(row(rows, "a").share_of_bound() == doctest::Approx(260.0 / 300));
  CHECK(row(rows, "b").bound().empty());
  const std::string table = profile_table(trace, ProfileBy::op, peaks);
  CHECK(contains(table, "memory   87%"));
  CHECK(contains(table, "Peaks on 2 threads: 100 GFLOP/s in f32, 200 in bf16; L2 40.0, memory"));
  CHECK_FALSE(contains(profile_table(trace, ProfileBy::op, {}), "Peaks"));
}

TEST_CASE("profiler: peaks are the same from JSON, and nothing else is taken for some") {
  const ProfilerPeaks peaks{.threads = 3,
                            .arithmetic = {{"avx2", false, 100.5}, {"amx", true, 2000}},
                            .memory = {{"L1", 1 << 16, 400}, {"memory", INT64_MAX, 20.25}}};
  const std::string text = peaks.json();
  const auto read = ProfilerPeaks::parse(text);
  REQUIRE(read.has_value());
  CHECK(read->json() == text);
  CHECK(read->describe() ==
        "3 threads: 100 GFLOP/s in f32, 2000 in bf16; L1 400.0, memory 20.2 GB/s");
  for (const std::string broken :
       {"", "null", "{}", "[1]", R"({"threads":2,"arithmetic":[],"memory":[]})",
        R"({"threads":2,"arithmetic":[{"isa":"a","dtype":"f32","gflops":"fast"}],"memory":[]})",
        R"({"threads":2,"arithmetic":[{"isa":"a","dtype":"f32","gflops":1}],"memory":[]})"})
    CHECK_FALSE(ProfilerPeaks::parse(broken).has_value());
  for (size_t cut = 0; cut < text.size(); ++cut)
    CHECK_FALSE(ProfilerPeaks::parse(text.substr(0, cut)).has_value());
}

TEST_CASE("profiler: rows by module, shape and kernel") {
  Trace trace;
  trace.steps = {{0, 0, 10, 0}};
  Event op = event("conv2d_fwd", 0, 2, 8);
  op.kernel = "tile", op.problem = "2x3", op.formats = "f32", op.module = "layer1.0";
  trace.events = {op, event("layer1.0", 0, 0, 9, SpanKind::module)};
  trace.events[1].module = "layer1.0";
  CHECK(row(profile_rows(trace, ProfileBy::module), "layer1.0").self == 9);
  CHECK(row(profile_rows(trace, ProfileBy::module), "layer1.0").calls == 1);
  CHECK(row(profile_rows(trace, ProfileBy::shape), "conv2d_fwd 2x3 f32").self == 6);
  CHECK(row(profile_rows(trace, ProfileBy::kernel), "tile").self == 6);
  CHECK(row(profile_rows(trace, ProfileBy::op), "(modules)").self == 3);
}

TEST_CASE("profiler: records ops, modules and backward passes of a training step") {
  nn::Sequential net(nn::Linear(64, 32), nn::ReLU(), nn::Linear(32, 8));
  const Tensor x = randn({16, 64});
  const TemporaryFolder folder;
  Profiler profile(folder / "trace.json");
  sum(net(x)).backward();
  profile.stop();
  const std::string trace = folder.read("trace.json"), table = profile.table();
  for (const char* op : {"linear_fwd", "relu", "sum", "backward", "linear_backward",
                         "linear_bwd_weights", "relu_backward"}) {
    CHECK_MESSAGE(contains(trace, "\"name\":\"" + std::string(op) + "\""), op);
    CHECK_MESSAGE(contains(table, std::string(op) + " "), op);
  }
  CHECK(contains(trace, "\"ProfilerStep#0\""));
  CHECK(contains(trace, "\"memory in use\""));
  CHECK(contains(trace, "Sequential"));
  const std::string modules = profile.table(ProfileBy::module);
  for (const char* module : {"0 ", "1 ", "2 "})
    CHECK(contains(modules, std::string("\n") + module));
  CHECK_THROWS_AS(profile_by("colour"), Error);
  CHECK(profile_by("module") == ProfileBy::module);
}

TEST_CASE("profiler: the schedule picks steps") {
  const Tensor x = randn({8});
  const TemporaryFolder folder;
  const auto steps = [&](const ProfilerSchedule& schedule) {
    Profiler profile(folder / "trace.json", schedule);
    for (int i = 0; i < 12; ++i) {
      static_cast<void>(sum(x));
      profile.step();
    }
    profile.stop();
    const std::string trace = folder.read("trace.json");
    std::string found;
    for (int i = 0; i < 13; ++i)
      if (contains(trace, "\"ProfilerStep#" + std::to_string(i) + "\""))
        found += std::to_string(i) + " ";
    return found;
  };
  CHECK(steps({}) == "0 1 2 3 4 5 6 7 8 9 10 11 ");
  CHECK(steps({.wait = 1, .warmup = 1, .active = 2}) == "2 3 6 7 10 11 ");
  CHECK(steps({.wait = 1, .warmup = 1, .active = 2, .repeat = 1}) == "2 3 ");
  CHECK(steps({.active = 1, .repeat = 2, .skip_first = 5}) == "5 6 ");
  CHECK(steps({.wait = 50}) == "");
}

TEST_CASE("profiler: start goes on after stop, and the table is of all steps") {
  const Tensor x = randn({8});
  Profiler profile("");
  static_cast<void>(sum(x));
  profile.stop();
  static_cast<void>(sum(x));
  CHECK_THROWS_WITH_AS(profile.step(), doctest::Contains("[profiler] step: expected"), Error);
  profile.start();
  CHECK_THROWS_WITH_AS(profile.start(), doctest::Contains("[profiler] start: expected"), Error);
  static_cast<void>(sum(x));
  profile.stop();
  profile.stop();
  CHECK(contains(profile.table(), "2 steps"));
}

TEST_CASE("profiler: a process without ops has an empty trace") {
  const TemporaryFolder folder;
  {
    Profiler profile(folder / "trace.json");
    profile.stop();
    CHECK(contains(profile.table(), "0 steps"));
    CHECK_FALSE(contains(profile.table(), "nan"));
  }
  CHECK(contains(folder.read("trace.json"), "\"traceEvents\":["));
  CHECK_FALSE(contains(folder.read("trace.json"), "ProfilerStep"));
}

TEST_CASE("profiler: what another thread is in is cut off at the ends of steps") {
  const TemporaryFolder folder;
  Profiler profile(folder / "trace.json");
  std::atomic<bool> open = false, over = false;
  std::thread other([&] {
    const Span span("long");
    open = true;
    while (!over) std::this_thread::yield();
  });
  while (!open) std::this_thread::yield();
  profile.step();
  over = true;
  other.join();
  profile.stop();
  const std::string trace = folder.read("trace.json");
  const auto begin_of = [&](const std::string& name) {
    const size_t event = trace.find("\"name\":\"" + name + "\"", trace.find("traceEvents"));
    const size_t at = trace.find("\"ts\":", event);
    return std::strtod(trace.c_str() + at + 5, nullptr);
  };
  CHECK(begin_of("ProfilerStep#1") > 0);
  CHECK(begin_of("long") == begin_of("ProfilerStep#1"));
}

TEST_CASE("profiler: errors leave nothing at work") {
  const TemporaryFolder folder;
  CHECK_THROWS_WITH_AS(Profiler(folder / "missing/trace.json"),
                       doctest::Contains("[profiler] path: expected a writable file"), Error);
  CHECK_THROWS_WITH_AS(Profiler("", {.active = 0}), doctest::Contains("[profiler] schedule"),
                       Error);
  CHECK_THROWS_WITH_AS(Profiler("", {.wait = -1}), doctest::Contains("[profiler] schedule"), Error);
  {
    Profiler first("");
    CHECK_THROWS_WITH_AS(Profiler(""), doctest::Contains("expected no other profiler"), Error);
  }
  Profiler next("");
  CHECK(std::filesystem::is_empty(folder / ""));
}
