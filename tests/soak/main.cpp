// Draws graphs of ops for as long as it is told, and holds f32 and bf16 to f64 (compare.h):
//   test_soak [--seed S] [--minutes M] [--graphs N]
// Graph i is drawn from the seed S + i, which is printed where something is wrong; --graphs 1 with
// it draws that graph again. Without --minutes, --graphs (200) are drawn.
#define DOCTEST_CONFIG_IMPLEMENT  // for what the tests share
#include <doctest/doctest.h>
#include <fmt/core.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>

#include "compare.h"

using namespace quern;

namespace {

struct Options {
  uint64_t seed = 1, graphs = 200;
  double minutes = 0;
};

bool parse(int argc, char** argv, Options& options) {
  for (int i = 1; i < argc; i += 2) {
    const std::string_view name = argv[i];
    if (i + 1 == argc) return false;
    char* end = nullptr;
    if (name == "--seed") options.seed = std::strtoull(argv[i + 1], &end, 10);
    else if (name == "--graphs") options.graphs = std::strtoull(argv[i + 1], &end, 10);
    else if (name == "--minutes") options.minutes = std::strtod(argv[i + 1], &end);
    if (end == nullptr || end == argv[i + 1] || *end != '\0') return false;
  }
  return true;
}

/// How many dtypes are wrong.
int check_graph(uint64_t seed) {
  soak::Dice dice{std::mt19937_64(seed)};
  const soak::Program program = soak::draw_program(dice);
  int wrong = 0;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    std::string error;
    try {
      error = soak::compare(program, dtype, seed);
    } catch (const std::exception& thrown) {
      error = fmt::format("throws {}", thrown.what());
    }
    if (error.empty()) continue;
    ++wrong;
    fmt::print("seed {} in {}: {}\n{}", seed, dtype, error, program.text());
  }
  return wrong;
}

}  // namespace

int main(int argc, char** argv) {
  using Clock = std::chrono::steady_clock;
  Options options;
  if (!parse(argc, argv, options)) {
    fmt::print(stderr, "usage: {} [--seed S] [--minutes M] [--graphs N]\n", argv[0]);
    return 2;
  }
  fmt::print("seed {}\n", options.seed);
  const auto begin = Clock::now();
  const auto going_on = [&](uint64_t graphs) {
    const std::chrono::duration<double, std::ratio<60>> minutes = Clock::now() - begin;
    return options.minutes > 0 ? minutes.count() < options.minutes : graphs < options.graphs;
  };
  uint64_t graphs = 0;
  int wrong = 0;
  for (; going_on(graphs); ++graphs) wrong += check_graph(options.seed + graphs);
  fmt::print("{} graphs, {} wrong\n", graphs, wrong);
  return wrong == 0 ? 0 : 1;
}
