#include "machine_peaks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "output.h"
#include "peaks.h"
#include "quern/tensor/cpu_features.h"
#include "quern/tensor/parallel.h"

namespace resnet50 {

using namespace quern;

namespace {

namespace fs = std::filesystem;

std::optional<fs::path> cache_file() {
  if (const char* folder = std::getenv("XDG_CACHE_HOME"); folder && *folder)
    return fs::path(folder) / "quern" / "peaks.json";
  if (const char* home = std::getenv("HOME"); home && *home)
    return fs::path(home) / ".cache" / "quern" / "peaks.json";
  return std::nullopt;
}

int threads_at_work() {
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, num_threads());
}

bench::Peaks measure() {
  const int before = num_threads();
  set_num_threads(threads_at_work());
  const bench::Peaks peaks = bench::measure_peaks();
  set_num_threads(before);
  return peaks;
}

/// What the figures are good for.
nlohmann::json conditions() {
  return {{"cpu", cpu_name()},
          {"cores", std::thread::hardware_concurrency()},  // of the affinity
          {"threads", threads_at_work()},
          {"compiler", __VERSION__}};
}

std::optional<ProfilerPeaks> load(const fs::path& path) {
  std::ifstream file(path);
  const auto json = nlohmann::json::parse(file, nullptr, false);
  if (!json.is_object() || json.value("of", nlohmann::json()) != conditions()) return std::nullopt;
  const auto figure = [&](const char* name) {
    const auto found = json.find(name);
    return found != json.end() && found->is_number() ? found->get<double>() : 0;
  };
  const ProfilerPeaks peaks{figure("f32_gflops"), figure("bf16_gflops"), figure("memory_gbytes")};
  const bool whole = peaks.f32_gflops > 0 && peaks.bf16_gflops > 0 && peaks.memory_gbytes > 0;
  return whole ? std::optional(peaks) : std::nullopt;
}

}  // namespace

ProfilerPeaks machine_peaks() {
  const auto path = cache_file();
  if (path)
    if (const auto kept = load(*path)) return *kept;
  const bench::Peaks measured = measure();
  const ProfilerPeaks peaks{measured.gflops(DType::f32), measured.gflops(DType::bf16),
                            measured.memory.back().best()};
  if (path) {
    try {
      fs::create_directories(path->parent_path());
      write_text(*path, nlohmann::json{{"of", conditions()},
                                       {"f32_gflops", peaks.f32_gflops},
                                       {"bf16_gflops", peaks.bf16_gflops},
                                       {"memory_gbytes", peaks.memory_gbytes}}
                                .dump(2) +
                            "\n");
    } catch (const std::exception&) {  // measured again the next time
    }
  }
  return peaks;
}

}  // namespace resnet50
