// --profile, --price-per-hour and doctor, by what they print and write.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "built_isa.h"
#include "program.h"
#include "temporary_folder.h"

using quern::testing::Run, quern::testing::run, quern::testing::TemporaryFolder;

namespace {

using Json = nlohmann::json;

const std::string kTiny = " --arch resnet18 --image-size 32 -b 2 ";

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// Runs resnet50 with a cache of peaks in the folder, so that the user's stays as it is.
Run resnet50(const TemporaryFolder& folder, const std::string& arguments,
             const std::string& environment = "") {
  return run(fmt::format("{} XDG_CACHE_HOME={} {} {}", environment, folder / "cache",
                         QUERN_RESNET50, arguments));
}

/// Doctor, whose peaks are measured once for all cases.
Run doctor(const std::string& arguments, const std::string& environment = "") {
  static const TemporaryFolder peaks;
  return resnet50(peaks, "doctor " + arguments, environment);
}

int64_t nanoseconds(const Json& microseconds) {
  return std::llround(1000 * microseconds.get<double>());
}

struct Span {
  int64_t begin, end;
  explicit Span(const Json& event)
      : begin(nanoseconds(event.at("ts"))), end(begin + nanoseconds(event.at("dur"))) {}
  bool contains(const Span& other) const { return begin <= other.begin && other.end <= end; }
};

bool is_step(const Json& event) {
  return event.at("name").get<std::string>().starts_with("ProfilerStep#");
}

/// Times rise; each thread's spans nest, each inside of a step. What steps do is in spans: all but
/// 5% of the step that they cover best, as a machine that others use, too, may stop any between two
/// spans. Returns how many threads have spans: on a busy machine one may come too late for a share.
size_t check_trace(const Json& trace, size_t steps, size_t threads) {
  std::vector<Span> of_steps;
  for (const Json& event : trace.at("traceEvents"))
    if (is_step(event)) of_steps.emplace_back(event);
  CHECK(of_steps.size() == steps);
  std::map<int, std::vector<Span>> open;
  int of_step = -1;     // the thread of the step at hand
  double in_spans = 0;  // nanoseconds of it that they cover
  double best_share = 0, last = 0;
  size_t outside = 0, crossing = 0, falling = 0, counters = 0;
  for (const Json& event : trace.at("traceEvents")) {
    if (event.at("ph") == "M") continue;
    falling += event.at("ts").get<double>() < last;
    last = event.at("ts");
    counters += event.at("ph") == "C";
    if (event.at("ph") != "X") continue;
    const Span span(event);
    outside += std::ranges::none_of(of_steps, [&](const Span& s) { return s.contains(span); });
    const int thread = event.at("tid");
    std::vector<Span>& stack = open[thread];
    while (!stack.empty() && stack.back().end <= span.begin) stack.pop_back();
    crossing += !stack.empty() && !stack.back().contains(span);
    if (is_step(event)) {
      of_step = thread, in_spans = 0;
    } else if (thread == of_step && stack.size() == 1) {
      const auto length = [](const Span& s) { return static_cast<double>(s.end - s.begin); };
      in_spans += length(span);
      best_share = std::max(best_share, in_spans / length(stack[0]));
    }
    stack.push_back(span);
  }
  CHECK(falling == 0);
  CHECK(outside == 0);
  CHECK(crossing == 0);
  CHECK(counters > 0);
  CHECK(best_share > 0.95);
  CHECK(open.size() <= threads);
  return open.size();
}

/// The table has the row, with the figures that follow from the summary's.
void check_line(const std::string& table, const Json& row, size_t width) {
  const std::string name = fmt::format("\n{:{}} ", row.at("name").get<std::string>(), width);
  const size_t begin = table.find(name);
  REQUIRE_MESSAGE(begin != std::string::npos, name);
  std::istringstream line(table.substr(begin + name.size(), 90));
  int64_t calls = 0;
  double total = 0, self = 0;
  std::string share, gflops, peak, gbytes, memory, bound, of_it;
  line >> calls >> total >> self >> share >> gflops >> peak >> gbytes >> memory >> bound >> of_it;
  constexpr double kDigits = 0.00051, kDigit = 0.051, kPercent = 0.51;  // half of the last one
  CHECK(calls == row.at("calls"));
  CHECK(std::abs(total - 1e-3 * row.at("total_us").get<double>()) < kDigits);
  const double self_us = row.at("self_us"), flop = row.at("flop");
  CHECK(std::abs(self - 1e-3 * self_us) < kDigits);
  if (flop > 0) CHECK(std::abs(std::stod(gflops) - 1e-3 * flop / self_us) < kDigit);
  CHECK(bound == (row.at("bound").is_null() ? "-" : row.at("bound").get<std::string>()));
  if (row.at("bound").is_null()) return;
  CHECK(std::abs(std::stod(of_it) - 100 * row.at("share_of_bound").get<double>()) < kPercent);
}

/// What a program of its own makes of the trace's events and peaks, by the formulas that are told.
void check_roofline(const Json& trace) {
  const Json &summary = trace.at("summary"), &peaks = summary.at("peaks");
  const auto name_in_op_table = [](const Json& event) {
    return event.at("cat") == "module" ? "(modules)" : event.at("name").get<std::string>();
  };
  std::map<std::string, std::map<std::string, double>> least;  // microseconds
  for (const Json& event : trace.at("traceEvents")) {
    if (event.at("ph") != "X" || !event.at("args").contains("flop")) continue;
    const Json& args = event.at("args");
    const double flop = args.at("flop"), bytes = args.at("bytes");
    const bool bf16 = has(args.value("kernel", ""), "bf16");
    const double arithmetic =
        1e-3 * flop / peaks.at(bf16 ? "bf16_gflops" : "f32_gflops").get<double>();
    const Json* level = nullptr;
    for (const Json& each : peaks.at("memory"))
      if (level == nullptr && bytes <= each.at("bytes").get<double>()) level = &each;
    const double moving = 1e-3 * bytes / level->at("gbytes_per_second").get<double>();
    const std::string by = arithmetic >= moving ? "arithmetic" : level->at("level");
    least[name_in_op_table(event)][by] += std::max(arithmetic, moving);
  }
  CHECK(least.contains("conv2d_fwd"));
  for (const Json& row : summary.at("op")) {
    const std::string name = row.at("name");
    CAPTURE(name);
    const auto& bounds = least[name];
    double sum = 0, longest = 0;
    for (const auto& [by, time] : bounds) sum += time, longest = std::max(longest, time);
    CHECK(row.at("least_us").get<double>() == doctest::Approx(sum));
    if (sum == 0) {
      CHECK(row.at("bound").is_null());
      CHECK(row.at("share_of_bound").is_null());
    } else {
      CHECK(bounds.at(row.at("bound")) == doctest::Approx(longest));
      CHECK(row.at("share_of_bound").get<double>() ==
            doctest::Approx(sum / row.at("self_us").get<double>()));
    }
  }
}

}  // namespace

TEST_CASE("resnet50 --profile: spans nest inside of steps, rows add up to them and are printed") {
  const TemporaryFolder folder;
  size_t most_threads = 0;  // of all runs
  const auto check_profile = [&](const std::string& run, const std::string& by, int threads) {
    CAPTURE(run + " by " + by);
    const Run result =
        resnet50(folder, fmt::format("{} --image-size 32 -b 2 --threads {} --steps 6 "
                                     "--profile-steps 3 --by {} --profile {}",
                                     run, threads, by, folder / "trace.json"));
    REQUIRE(result.status == 0);
    const Json trace = Json::parse(folder.read("trace.json"));
    most_threads = std::max(most_threads, check_trace(trace, 3, static_cast<size_t>(threads)));
    check_roofline(trace);
    const Json& summary = trace.at("summary");
    CHECK(summary.at("steps") == 3);
    CHECK(has(result.out, "Peaks on "));
    double self = 0;
    size_t width = 20;
    for (const Json& row : summary.at(by))
      width = std::max(width, row.at("name").get<std::string>().size());
    for (const Json& row : summary.at(by)) {
      self += row.at("self_us").get<double>();
      check_line(result.out, row, width);
    }
    CHECK(self == doctest::Approx(summary.at("step_us").get<double>()));
  };
  for (const std::string mode : {"train", "infer"}) {
    for (const std::string by : {"op", "module", "shape", "kernel"})
      check_profile(mode + " --arch resnet18", by, 2);
    for (const auto& [arch, module] : {std::pair{"mobilenet_v2", "features.2.conv.1.0"},
                                       {"efficientnet_b0", "features.2.0.block.3.0"},
                                       {"convnext_tiny", "features.1.0.block.3"}}) {
      check_profile(mode + " --amp --channels-last --arch " + arch, "op", 2);
      // A convolution inside of a block, and what is copied or merged. Inference of convnext_tiny
      // may do neither: most CPUs read its patches where they lie.
      const std::string trace = folder.read("trace.json");
      CHECK_MESSAGE(has(trace, fmt::format("\"module\":\"{}\"", module)), module);
      if (mode == "train" || std::string_view(arch) != "convnext_tiny")
        CHECK(has(trace, "\"cat\":\"part\""));
    }
    check_profile(mode + " --arch mobilenet_v2", "op", 1);
  }
  CHECK(most_threads == 2);
}

TEST_CASE("resnet50 --profile: peaks are measured once, and again when doctor is asked to") {
  const TemporaryFolder folder;
  const auto peaks = [&] {
    const Run result = resnet50(folder, fmt::format("infer {} --steps 1 --threads 1 --profile {}",
                                                    kTiny, folder / "trace.json"));
    REQUIRE(result.status == 0);
    return Json::parse(folder.read("cache/quern/peaks.json"));
  };
  const auto slower = [&](const Json& json) {
    Json slow = json;
    slow.at("peaks").at(0).at("arithmetic").at(0)["gflops"] = 1e-3;
    quern::testing::write_file(folder / "cache/quern/peaks.json", slow.dump());
    return slow;
  };
  const Json measured = peaks();
  REQUIRE(measured.at("peaks").size() == 1);
  CHECK(measured.at("peaks")[0].at("threads") == 1);
  const Json kept = slower(measured);
  CHECK(peaks() == kept);
  REQUIRE(resnet50(folder, "doctor --measure --threads 1").status == 0);
  CHECK(peaks().at("peaks")[0].at("arithmetic")[0].at("gflops") > 1e-3);
}

TEST_CASE("resnet50 --profile: a file that cannot be written is an error before the run") {
  const TemporaryFolder folder;
  const Run result = resnet50(folder, "infer" + kTiny + "--profile " + folder / "none/trace.json");
  CHECK(result.status == 1);
  CHECK(result.out.empty());
  CHECK(has(result.err, "[infer] --profile: expected a writable file"));
  CHECK(resnet50(folder, "infer" + kTiny + "--by colour").status == 2);
}

TEST_CASE("resnet50 --price-per-hour: what images cost follows from their rate") {
  for (const std::string mode : {"train", "infer"}) {
    const TemporaryFolder folder;
    const Run result =
        resnet50(folder, mode + kTiny + "--steps 5 --price-per-hour 1.8 --json " + folder / "json");
    REQUIRE(result.status == 0);
    CHECK(has(result.out, "at $1.8 an hour: $"));
    const Json json = Json::parse(folder.read("json"));
    const double rate = json.at("samples_per_second");
    CHECK(json.at("price_per_hour") == 1.8);
    CHECK(json.at("dollars_per_million_images").get<double>() ==
          doctest::Approx(1.8 * 1e6 / (3600 * rate)));
    CHECK(json.at("thousand_images_per_dollar").get<double>() == doctest::Approx(3.6 * rate / 1.8));
    if (mode == "train") continue;
    const Json& latency = json.at("latency_ms");
    const std::vector<double> ms = json.at("step_ms");
    CHECK(latency.at("samples") == 3);
    CHECK(latency.at("mean").get<double>() == doctest::Approx((ms[2] + ms[3] + ms[4]) / 3));
    CHECK(has(result.out, "p99 "));
    CHECK(has(result.out, "(of 3)"));
  }
  const TemporaryFolder folder;
  for (const std::string price : {"0", "-1", "nan", "inf", "dear"})
    CHECK(resnet50(folder, "infer" + kTiny + "--price-per-hour " + price).status == 2);
}

#ifdef __linux__
TEST_CASE("resnet50 doctor: tells what /proc and /sys say, and warns of what costs") {
  cpu_set_t set;
  REQUIRE(sched_getaffinity(0, sizeof set, &set) == 0);
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  const TemporaryFolder folder;
  const auto file = [&](const std::string& path, const std::string& text) {
    const std::filesystem::path full = std::filesystem::path(folder / "root") / path;
    std::filesystem::create_directories(full.parent_path());
    quern::testing::write_file(full, text + "\n");
  };
  const auto doctor = [&](int threads, const std::string& topology = "") {
    const Run result = ::doctor(fmt::format("--root {} --threads {}", folder / "root", threads),
                                "OMP_WAIT_POLICY=" + topology);
    REQUIRE(result.status == 0);
    return result.out;
  };
  const std::string cpu = fmt::format("sys/devices/system/cpu/cpu{}/", cpus[0]);

  file("proc/loadavg", "0.00 0.00 0.00 1/1 1");
  file("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never");
  file(cpu + "cpufreq/scaling_governor", "performance");
  const std::string healthy = doctor(1);
  for (const char* line : {"quota        none", "governor     performance", "huge pages   madvise",
                           "container    no", "load         0.00", "\npeaks "})
    CHECK_MESSAGE(has(healthy, line), healthy);
  for (const char* warning : {"a quota", "threads share a core", "threads across",
                              "warning: the frequency", "no transparent", "other programs"})
    CHECK_FALSE(has(healthy, warning));

  SUBCASE("an affinity that leaves CPUs out") {
    file("sys/devices/system/cpu/online", "0-4095");
    const std::string out = doctor(1);
    CHECK(has(out, fmt::format("affinity     {} of 4096 CPUs: ", cpus.size())));
    CHECK(has(out, fmt::format("warning: the affinity leaves {} of 4096 CPUs", cpus.size())));
    CHECK(has(out, "taskset -c 0-4095 "));
  }
  SUBCASE("a quota of a group around this one's") {
    file("proc/self/cgroup", "0::/a/b");
    file("sys/fs/cgroup/a/b/cpu.max", "max 100000");
    file("sys/fs/cgroup/a/cpu.max", "50000 100000");
    const std::string out = doctor(1);
    CHECK(has(out, "quota        0.5 CPUs (/sys/fs/cgroup/a/cpu.max)"));
    CHECK(has(out, "warning: a quota of 0.5 CPUs for 1 thread"));
    CHECK(has(out, "50% of the time"));
  }
  SUBCASE("a quota of the older kind, of a container whose group is at the top") {
    file("proc/self/cgroup", "5:memory:/x\n4:cpu,cpuacct:/docker/123");
    file("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "25000");
    file("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000");
    CHECK(has(doctor(1), "warning: a quota of 0.25 CPUs for 1 thread"));
    file("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1");
    CHECK(has(doctor(1), "quota        none"));
  }
  SUBCASE("a governor that saves power, no huge pages, a container, other programs") {
    file(cpu + "cpufreq/scaling_governor", "powersave");
    file("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]");
    file(".dockerenv", "");
    file("proc/loadavg", "1000.5 0.00 0.00 1/1 1");
    const std::string out = doctor(1);
    for (const char* line :
         {"warning: the frequency governor is powersave", "warning: no transparent huge pages",
          "container    yes (/.dockerenv)", "warning: other programs run: 1000.50"})
      CHECK_MESSAGE(has(out, line), out);
  }
  SUBCASE("clocks that the CPU sets itself, by what it is to prefer") {
    file(cpu + "cpufreq/scaling_driver", "intel_pstate");
    file(cpu + "cpufreq/scaling_governor", "powersave");
    file(cpu + "cpufreq/energy_performance_preference", "balance_performance");
    const std::string out = doctor(1);
    CHECK(has(out, "governor     powersave, intel_pstate, balance_performance\n"));
    CHECK_FALSE(has(out, "warning: the frequency"));
    CHECK_FALSE(has(out, "energy preference"));
    file(cpu + "cpufreq/energy_performance_preference", "balance_power");
    CHECK(has(doctor(1), "warning: the CPU's energy preference is balance_power"));
  }
  SUBCASE("a container that only its control group tells of") {
    file("proc/self/cgroup", "0::/kubepods/burstable/pod7");
    CHECK(has(doctor(1), "container    yes (kubepods in /proc/self/cgroup)"));
  }
  SUBCASE("threads that are fewer than CPUs") {
    if (cpus.size() < 2) {
      MESSAGE("skipped: there is one CPU");
      return;
    }
    CHECK(has(doctor(1), fmt::format("warning: 1 thread for {} CPUs", cpus.size())));
    const int all = static_cast<int>(cpus.size());
    CHECK_FALSE(has(doctor(all), fmt::format(" for {} CPUs", all)));
  }
  if (cpus.size() < 2 || cpus[0] != 0 || cpus[1] != 1) {  // hwloc's stand-ins number from 0
    MESSAGE("skipped threads on cores and nodes: the CPUs 0 and 1 are not both this process's");
    return;
  }
  SUBCASE("threads that share a core") {
    const std::string core = " HWLOC_SYNTHETIC='numa:1 core:1 pu:2'", out = doctor(2, core);
    CHECK(has(out, "warning: threads share a core"));
    CHECK(has(out, "share a core: 0-1"));
    CHECK(has(out, "1 node, 0: 0-1"));
    CHECK_FALSE(has(doctor(1, core), "warning: threads"));
  }
  SUBCASE("threads on two nodes") {
    const std::string nodes = " HWLOC_SYNTHETIC='numa:2 core:1 pu:1'", out = doctor(2, nodes);
    CHECK(has(out, "warning: threads across 2 NUMA nodes"));
    CHECK(has(out, "numactl --cpunodebind=0 --membind=0"));
    CHECK(has(out, "2 nodes, 0: 0 1: 1"));
    CHECK_FALSE(has(doctor(1, nodes), "warning: threads"));
  }
}
#endif

TEST_CASE("resnet50 doctor: tells which tiles are taken, under a cap, too") {
  const auto doctor = [&](const std::string& cap) {
    const Run result = ::doctor("", cap.empty() ? "" : "QUERN_MAX_CPU_ISA=" + cap);
    REQUIRE(result.status == 0);
    return result.out;
  };
  const std::string best = doctor(""), portable = doctor("portable");
  CHECK(has(best, "\nkernels      f32 gemm_f32_"));
  CHECK_FALSE(has(best, "warning: QUERN_MAX_CPU_ISA"));
  CHECK(has(portable, "ISA          portable"));
  CHECK(has(portable, "QUERN_MAX_CPU_ISA=portable"));
#ifdef __x86_64__
  CHECK((has(best, "with amx     bf16 gemm_bf16_bf16_f32_32x32k2_amx") ||
         has(best, "\nwithout amx  f32 gemm_f32_")));
  const bool vectors = quern::test::is_built(quern::Isa::avx2) ||
                       quern::test::is_built(quern::Isa::avx512) ||
                       quern::test::is_built(quern::Isa::avx512_bf16);
  CHECK(has(best, "ISA          portable") == !vectors);
  if (!vectors) {
    MESSAGE("skipped: a cap of portable costs this CPU nothing");
    return;
  }
  CHECK(has(portable, "warning: QUERN_MAX_CPU_ISA=portable"));
  CHECK(has(portable, "type:  unset QUERN_MAX_CPU_ISA"));
#endif
}

TEST_CASE("resnet50 doctor: more threads than CPUs") {
  const Run result = doctor("--threads 1024");
  REQUIRE(result.status == 0);
  CHECK(has(result.out, "warning: 1024 threads on "));
  CHECK(has(result.out, "export OMP_NUM_THREADS="));
}
