// quern_bench: Google Benchmark over the kernel registries, each result checked before it is timed.
#include <benchmark/benchmark.h>
#include <fmt/core.h>

#include <cstdio>
#include <exception>
#include <nlohmann/json.hpp>

#include "clock.h"
#include "suite.h"
#include "summary.h"

namespace quern::bench {
namespace {

bool all_right = true;

/// The case of the benchmark that runs now: Google Benchmark calls its function several times.
class Current {
 public:
  /// Null, after an error, if its result is wrong.
  Case* enter(const Benchmark& b, const std::string& name, benchmark::State& state) {
    if (name_ != name) {
      case_.reset();  // before the next one takes memory
      case_ = b.make();
      case_->run();
      name_ = name, wrong_ = case_->wrong();
    }
    if (wrong_.empty()) return case_.get();
    all_right = false;
    state.SkipWithError(("wrong result: " + wrong_).c_str());
    return nullptr;
  }

 private:
  std::string name_, wrong_;
  std::unique_ptr<Case> case_;
};

void run(benchmark::State& state, const Benchmark& b, const std::string& name, int threads,
         bool cold, const Peaks& peaks) {
  static Current current;
  set_num_threads(threads);
  Case* c = current.enter(b, name, state);
  if (!c) return;

  double seconds = 0;
  if (cold) {
    for (auto _ : state) {
      c->evict();
      const double s = seconds_of([&] { c->run(); });
      state.SetIterationTime(s);
      seconds += s;
    }
  } else {
    seconds = seconds_of([&] {
      for (auto _ : state) c->run();
    });
  }

  const auto count = [&](const std::string& counter, double a_run) {
    state.counters[counter] = a_run * static_cast<double>(state.iterations()) / seconds;
  };
  if (b.flop > 0) {
    count("GFLOP/s", 1e-9 * b.flop);
    count("%peak", 1e-7 * b.flop / peaks.gflops(b.dtype));
  }
  if (b.nominal_flop > 0) count("nominal", 1e-9 * b.nominal_flop);
  const Peaks::Memory& level = peaks.level(cold ? INT64_MAX : c->operand_bytes());
  count("GB/s", 1e-9 * b.bytes);
  count("%" + level.level, 1e-7 * b.bytes / level.best());
}

void add_context(const Options& options, const PeaksByThreads& peaks) {
  using benchmark::AddCustomContext;
  AddCustomContext("cpu", cpu_name());
  AddCustomContext("isa", std::string(to_string(max_isa())));
  // Google Benchmark's own "library_build_type" tells how Debian built libbenchmark.
  AddCustomContext("quern_build_type", QUERN_BUILD_TYPE);
  AddCustomContext("operands", options.cold ? "cold" : "warm");
  for (const auto& [threads, measured] : peaks)
    AddCustomContext(fmt::format("peaks_t{}", threads), measured.json().dump());
}

void add_benchmark(const Benchmark& b, int threads, bool cold, const Peaks& peaks) {
  const std::string name = fmt::format("{}/t{}", b.name, threads);
  auto* added = benchmark::RegisterBenchmark(
      name.c_str(), [&b, name, threads, cold, &peaks](benchmark::State& state) {
        run(state, b, name, threads, cold, peaks);
      });
  added->Unit(b.one_thread  ? benchmark::kNanosecond
              : b.flop == 0 ? benchmark::kMicrosecond
                            : benchmark::kMillisecond);
  // The default is the CPU's time of one thread (clock.h tells why).
  if (cold) added->UseManualTime();
  else if (threads > 1) added->UseRealTime();
}

Benchmarks all_benchmarks(const Options& options) {
  Benchmarks all;
  for (auto add : {add_gemm, add_conv, add_batch_norm, add_join, add_pool, add_elementwise,
                   add_rows, add_lookup, add_optimizer, add_by_chance})
    add(options, all);
  return all;
}

/// Prints them, too: beside benchmarks to stderr, since stdout may be Google Benchmark's JSON.
PeaksByThreads measure_all(const Options& options) {
  PeaksByThreads peaks;
  std::FILE* out = options.peaks || options.summary ? stdout : stderr;
  if (!options.list)
    fmt::print(out, "{}, {}, {} build\n", cpu_name(), to_string(max_isa()), QUERN_BUILD_TYPE);
  for (int threads : options.threads) {
    const auto [at, is_new] = peaks.try_emplace(threads);
    if (!is_new || options.list) continue;
    set_num_threads(threads);
    at->second = measure_peaks();
    at->second.print(out);
  }
  return peaks;
}

int bench_main(int argc, char** argv) {
  const Options options = parse_options(argc, argv);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  const Benchmarks benchmarks = all_benchmarks(options);

  const PeaksByThreads peaks = measure_all(options);
  if (options.peaks) return 0;
  if (options.summary) return print_summary(options, peaks) ? 0 : 1;

  add_context(options, peaks);
  for (const Benchmark& b : benchmarks)
    for (const auto& [threads, measured] : peaks)
      if (!b.one_thread || threads == 1) add_benchmark(b, threads, options.cold, measured);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return all_right ? 0 : 1;
}

}  // namespace
}  // namespace quern::bench

int main(int argc, char** argv) {
  try {
    return quern::bench::bench_main(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "quern_bench: error: {}\n", error.what());
    return 2;
  }
}
