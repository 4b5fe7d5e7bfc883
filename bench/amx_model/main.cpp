// quern_amx_model: what the library's drivers ask of AMX for ResNet-50's convolutions, and what
// that takes, by a model (cycles.h). Runs on any CPU.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <map>
#include <vector>

#include "../conv_bench.h"
#include "clock.h"
#include "copies.h"
#include "cycles.h"
#include "quern/tensor/check.h"

namespace quern::bench {
namespace {

using namespace kernels;
constexpr const char* kPasses[] = {"forward", "dgrad", "wgrad"};
constexpr GemmKernel kStrips = counting_amx(true), kPanels = counting_amx(false);

struct Settings {
  Options shapes;
  int threads = 2;
  std::string only;
  bool panels = false, measure = false;
};

/// The second run of two: operands are as warm as their size allows.
Counts count(const Settings& settings, const ConvChoice& choice) {
  set_num_threads(1);
  counting_copies = true;
  const auto c = conv_case(choice, false);
  c->run();
  core.counts = {};
  c->run();
  counting_copies = false;
  if (settings.panels && choice.pass != ConvPass::wgrad) {
    // What finishes tiles there is no part of the micro-kernel: whole lines of bf16, out and in.
    const ConvProblem& p = choice.problem;
    const int64_t outputs =
        p.n * (choice.pass == ConvPass::forward ? p.oc * p.oh * p.ow : p.ic * p.ih * p.iw);
    const int64_t lines = outputs / 32;
    core.counts.finished_rows += lines;
    core.counts.of_sums.beyond += lines, core.counts.of_sums.l2 += lines;
  }
  return core.counts;
}

/// Median seconds of the real tile, in the same order.
double measure(const Settings& settings, const ConvChoice& counted) {
  constexpr size_t kRuns = 15;
  set_num_threads(settings.threads);
  GemmKernel gemm = select_gemm_kernel(DType::bf16);
  if (settings.panels) gemm.run_strip = nullptr;
  const auto c = conv_case(choose_conv(counted.problem, counted.pass, &gemm), false);
  c->run();
  std::vector<double> seconds(kRuns);
  for (double& s : seconds) s = seconds_of([&] { c->run(); });
  std::ranges::sort(seconds);
  return seconds[kRuns / 2];
}

struct Sum {
  double modelled = 0, measured = 0;
  std::vector<double> ratios;

  void add(double model, double real, double times) {
    modelled += times * model, measured += times * real;
    ratios.push_back(model / real);
  }
};

void print_row(const Settings& settings, const ConvShape& shape, ConvPass pass, Sum& sum) {
  const ConvChoice choice = choose_conv(shape.problem, pass, settings.panels ? &kPanels : &kStrips);
  if (!is_needed(choice)) return;
  const Counts n = count(settings, choice);
  const Cycles cycles(n);
  const auto megabytes = [](int64_t lines) { return 64e-6 * static_cast<double>(lines); };
  const double of_core = cycles.total() / settings.threads;
  const double ms = 1e-6 * of_core / Cycles::kGigahertz;
  const double flop = conv_benchmark(settings.shapes, choice).flop;
  fmt::print("{:22} {:8} {:7.3f} {:7.3f} {:8.1f} {:8.1f} {:8.1f} {:8.2f} {:7.3f} {:4.0f}%",
             short_shape(shape.problem), kPasses[static_cast<size_t>(pass)],
             1e-6 * static_cast<double>(n.multiplications),
             1e-6 * static_cast<double>(n.tile_loads), megabytes(n.loaded_lines),
             megabytes(n.of_operands.l2 + n.of_sums.l2 + n.of_packing.l2),
             megabytes(n.of_operands.beyond + n.of_sums.beyond + n.of_packing.beyond),
             1e-6 * of_core, ms, 100 * flop / cycles.total() / Cycles::kFlop);
  const double real = settings.measure ? 1e3 * measure(settings, choice) : 0;
  if (settings.measure) fmt::print(" {:8.3f} {:5.2f}", real, ms / real);
  fmt::print("  {}\n", cycles.bound());
  std::fflush(stdout);
  sum.add(ms, real, static_cast<double>(shape.count));
}

void print_sum(const Settings& settings, const char* pass, Sum& sum) {
  fmt::print("{:8} of these layers, as often as the network has them: {:.2f} ms", pass,
             sum.modelled);
  if (settings.measure) {
    std::ranges::sort(sum.ratios);
    double error = 0;
    for (double r : sum.ratios)
      error += std::abs(std::log(r)) / static_cast<double>(sum.ratios.size());
    fmt::print(
        ", measured {:.2f}; model ÷ measured {:.2f} to {:.2f}, median {:.2f}, mean error {:.0f}%",
        sum.measured, sum.ratios.front(), sum.ratios.back(), sum.ratios[sum.ratios.size() / 2],
        100 * (std::exp(error) - 1));
  }
  fmt::print("\n");
}

void print_header(const Settings& settings) {
  fmt::print("modelled for AMX at {} GHz, batch {}, {} threads, {} outside; nothing is timed{}\n",
             Cycles::kGigahertz, settings.shapes.batch, settings.threads,
             settings.panels ? "panels" : "strips", settings.measure ? " but \"measured\"" : "");
  constexpr const char* kLine = "{:22} {:8} {:>7} {:>7} {:>8} {:>8} {:>8} {:>8} {:>7} {:>5}{}\n";
  const bool measured = settings.measure;
  fmt::print(kLine, "layer", "pass", "10^6", "10^6", "L1", "L2", "beyond", "10^6", "", "of",
             measured ? " measured model  longest" : "  longest");
  fmt::print(kLine, "", "", "mult.", "loads", "MB", "MB", "MB", "cycles", "ms", "peak",
             measured ? "       ms  ÷ it" : "");
}

void print_table(const Settings& settings) {
  std::vector<ConvShape> shapes =
      read_conv_shapes(settings.shapes, DType::bf16, MemoryFormat::channels_last);
  std::erase_if(shapes, [&](const ConvShape& s) {
    return short_shape(s.problem).find(settings.only) == std::string::npos;
  });
  check(!shapes.empty(), "amx-model", "--only: no layer's name holds {}", settings.only);
  print_header(settings);
  std::map<ConvPass, Sum> sums;
  for (const ConvShape& shape : shapes)
    for (ConvPass pass : {ConvPass::forward, ConvPass::dgrad, ConvPass::wgrad})
      print_row(settings, shape, pass, sums[pass]);
  for (auto& [pass, sum] : sums)
    if (!sum.ratios.empty()) print_sum(settings, kPasses[static_cast<size_t>(pass)], sum);
}

int model_main(int argc, char** argv) {
  Settings s;
  s.shapes.conv_shapes = QUERN_SHAPES "/resnet50.txt";
  CLI::App app(
      "Models how long AMX takes for ResNet-50's convolutions in bf16, channels last: the "
      "library's "
      "drivers run on tiles that count, and the counts become cycles. Takes ten seconds.",
      "quern_amx_model");
  app.add_option("--batch", s.shapes.batch, "Images")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  app.add_option("--threads", s.threads, "Cores that share the work evenly")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--only", s.only, "Layers whose names hold this text, such as '64->256'");
  app.add_flag("--panels", s.panels, "The order of loops of tiles without strips: panels outside");
  app.add_flag("--measure", s.measure, "Times the real tiles, too, on a CPU with AMX");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    fmt::print(stderr, "quern_amx_model: error: {}\n", error.what());
    return 2;
  }
  check(!s.measure || select_gemm_kernel(DType::bf16).isa == Isa::amx, "amx-model",
        "--measure: expected a CPU with AMX");
  print_table(s);
  return 0;
}

}  // namespace
}  // namespace quern::bench

int main(int argc, char** argv) {
  try {
    return quern::bench::model_main(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "quern_amx_model: error: {}\n", error.what());
    return 2;
  }
}
