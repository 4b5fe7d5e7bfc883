#include "options.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "quern/tensor/check.h"
#include "quern/tensor/cpu_features.h"
#include "quern/tensor/parallel.h"

namespace quern::bench {

bool Options::wants(std::string_view record, bool dispatched) const {
  return std::ranges::any_of(isas, [&](const std::string& isa) {
    return isa == "all" || (isa == "best" ? dispatched : record.ends_with("_" + isa));
  });
}

namespace {

std::string is_isa(const std::string& name) try {
  isa_from_string(name);
  return {};
} catch (const Error& error) {
  return error.what();
}

CLI::Validator integer(int low, int high) { return CLI::Range(low, high).description("INT"); }

}  // namespace

Options parse_options(int& argc, char** argv) {
  Options o;
  std::vector<std::string> dtypes{"f32", "bf16"}, layouts{"nhwc"};
  o.threads = {1};
  if (num_threads() > 1) o.threads.push_back(num_threads());
  o.conv_shapes = QUERN_SHAPES "/resnet50.txt";
  o.gemm_shapes = QUERN_SHAPES "/gemm.txt";

  CLI::App app(
      "Times quern's kernels. Options of Google Benchmark (--benchmark_filter=REGEX, "
      "--benchmark_list_tests, ...) may stand among these; lists are written a,b.",
      "quern_bench");
  app.add_option("--batch", o.batch, "Images")->check(integer(1, 4096))->capture_default_str();
  app.add_option("--threads", o.threads, "Numbers of threads; default: 1 and all cores")
      ->delimiter(',')
      ->check(integer(1, 1024));
  app.add_option("--dtype", dtypes, "Default: both")
      ->delimiter(',')
      ->check(CLI::IsMember({"f32", "bf16"}));
  app.add_option("--layout", layouts, "Default: nhwc")
      ->delimiter(',')
      ->check(CLI::IsMember({"nchw", "nhwc"}));
  app.add_option("--isa", o.isas, "Kernels of these, as far as the CPU has them; default: the best")
      ->delimiter(',')
      ->check(CLI::IsMember({"best", "all", "reference"}) | CLI::Validator(is_isa, "an ISA"));
  app.add_flag("--cold", o.cold, "Evict the operands from the caches before each run");
  app.add_flag("--fused", o.fused, "Convolutions with the batch norms around them, as in training");
  app.add_flag("--peaks", o.peaks, "Print the peaks of this machine, run no benchmark");
  app.add_flag("--summary", o.summary, "Print a table of the network's convolutions instead");
  app.add_option("--runs", o.runs, "Least number of runs whose median the table shows")
      ->check(integer(1, 1'000'000))
      ->capture_default_str();
  auto* file =
      app.add_option("--conv-shapes", o.conv_shapes, "A file like bench/shapes/resnet50.txt")
          ->check(CLI::ExistingFile);
  app.add_option_function<std::string>(
         "--network",
         [&](const std::string& name) { o.conv_shapes = QUERN_SHAPES "/" + name + ".txt"; },
         "The convolutions of this network; default: resnet50")
      ->check(CLI::IsMember({"resnet50", "resnext50_32x4d", "mobilenet_v2", "mobilenet_v3_large",
                             "efficientnet_b0", "efficientnet_lite0", "convnext_tiny"}))
      ->excludes(file);
  app.add_option("--gemm-shapes", o.gemm_shapes, "A file like bench/shapes/gemm.txt")
      ->check(CLI::ExistingFile);

  const auto is_ours = [](const char* word) {
    return std::strncmp(word, "--benchmark_", 12) != 0 && std::strncmp(word, "--v=", 4) != 0;
  };
  std::vector<std::string> ours;  // CLI11 takes them last first
  std::vector<char*> others;
  for (int i = 1; i < argc; ++i)
    if (is_ours(argv[i])) ours.insert(ours.begin(), argv[i]);
    else others.push_back(argv[i]);
  o.list = std::ranges::any_of(
      others, [](std::string_view word) { return word.starts_with("--benchmark_list_tests"); });
  argc = 1 + static_cast<int>(others.size());
  std::ranges::copy(others, argv + 1);
  argv[argc] = nullptr;
  try {
    app.parse(ours);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) std::exit(app.exit(error));
    fmt::print(stderr, "quern_bench: error: {}\n", error.what());
    std::exit(2);
  }
  for (const std::string& d : dtypes) o.dtypes.push_back(d == "f32" ? DType::f32 : DType::bf16);
  for (const std::string& l : layouts)
    o.formats.push_back(l == "nhwc" ? MemoryFormat::channels_last : MemoryFormat::contiguous);
  return o;
}

}  // namespace quern::bench
