#include "summary.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstdio>

#include "clock.h"
#include "conv_bench.h"

namespace quern::bench {
namespace {

using namespace kernels;
constexpr std::array kPasses{ConvPass::forward, ConvPass::dgrad, ConvPass::wgrad};
constexpr int kColumn = 38;  // characters of a pass

/// Median seconds of a run of c; negative if the result is wrong.
double measure(const Options& options, const Benchmark& benchmark, Case* c) {
  constexpr double kLongEnough = 0.05;
  c->run();
  if (const std::string wrong = c->wrong(); !wrong.empty()) {
    fmt::print(stderr, "{}: wrong result: {}\n", benchmark.name, wrong);
    return -1;
  }
  std::vector<double> seconds;
  for (double sum = 0; std::ssize(seconds) < options.runs || sum < kLongEnough;) {
    if (options.cold) c->evict();
    seconds.push_back(seconds_of([&] { c->run(); }));
    sum += seconds.back();
  }
  std::ranges::sort(seconds);
  return seconds[seconds.size() / 2];
}

struct Work {
  double seconds = 0, flop = 0, nominal_flop = 0;
  double least_seconds = 0;  // of its bytes, at the rate of the level that holds them
  std::string level = {};

  void add(const Work& w, double times) {
    seconds += times * w.seconds, least_seconds += times * w.least_seconds;
    flop += times * w.flop, nominal_flop += times * w.nominal_flop;
  }
  /// Milliseconds, divided by `images`; GFLOP/s; % of the peak; % of what the bytes allow.
  void print(double images, double peak) const {
    fmt::print(" {:10.3f} {:7.1f} {:4.0f}% {:4.0f}% {:>6}", 1e3 * seconds / images,
               1e-9 * flop / seconds, 1e-7 * flop / seconds / peak, 100 * least_seconds / seconds,
               level);
  }
};

bool print_table(const Options& options, const ConvWay& way, MemoryFormat format,
                 const Peaks& peaks) {
  const double peak = peaks.gflops(way.gemm->a), images = static_cast<double>(options.batch);
  fmt::print(
      "\n{}, {}, batch {}, {} thread{}, {} operands{}; ms, GFLOP/s, share of {:.1f}, of memory\n",
      way.kernel ? way.choice({}, {}).name() : way.gemm->name, short_name(format), options.batch,
      num_threads(), num_threads() == 1 ? "" : "s", options.cold ? "cold" : "warm",
      options.fused ? ", fused" : "", peak);
  fmt::print("{:26} {:>2}{:>{}}{:>{}}{:>{}}\n", "layer", "n", "forward", kColumn, "dgrad", kColumn,
             "wgrad", kColumn);
  std::array<Work, 3> sums;
  bool right = true;
  for (const ConvShape& shape : read_conv_shapes(options, way.dtype(), format)) {
    fmt::print("{:26} {:>2}", short_shape(shape.problem), shape.count);
    for (ConvPass pass : kPasses) {
      const ConvChoice choice = way.choice(shape.problem, pass);
      if (!is_needed(choice)) {
        fmt::print("{:>{}}", "-", kColumn);
        continue;
      }
      const Benchmark b = conv_benchmark(options, choice);
      const auto c = b.make();
      const Peaks::Memory& level = peaks.level(options.cold ? INT64_MAX : c->operand_bytes());
      const Work work{measure(options, b, c.get()), b.flop, b.nominal_flop,
                      1e-9 * b.bytes / level.apart(), level.level};
      if (work.seconds < 0) {
        fmt::print("{:>{}}", "wrong", kColumn);
        right = false;
        continue;
      }
      work.print(1, peak);
      sums[static_cast<size_t>(pass)].add(work, static_cast<double>(shape.count));
    }
    fmt::print("\n");
    std::fflush(stdout);
  }
  if (!right) return false;

  fmt::print("{:29}", "sum, ms an image");
  Work all;
  for (const Work& sum : sums) {
    sum.print(images, peak);
    all.add(sum, 1);
  }
  fmt::print("\n{:29}", "all passes");
  all.print(images, peak);
  fmt::print("   {:.1f} GFLOP/s nominal\n", 1e-9 * all.nominal_flop / all.seconds);
  fmt::print("convolutions alone allow {:.2f} images/s inference, {:.2f} training\n",
             images / sums[0].seconds, images / all.seconds);
  return true;
}

}  // namespace

bool print_summary(const Options& options, const PeaksByThreads& peaks) {
  bool right = true;
  for (int threads : options.threads) {
    set_num_threads(threads);
    for (DType dtype : options.dtypes)
      each_conv_way(options, dtype, [&](const ConvWay& way) {
        for (MemoryFormat format : options.formats)
          right = print_table(options, way, format, peaks.at(threads)) && right;
      });
  }
  return right;
}

}  // namespace quern::bench
