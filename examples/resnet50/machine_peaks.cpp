#include "machine_peaks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "peaks.h"
#include "quern/tensor/cpu_features.h"
#include "quern/tensor/parallel.h"
#include "write_text.h"

namespace resnet50 {

using namespace quern;

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

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

ProfilerPeaks measure() {
  const int before = num_threads();
  set_num_threads(threads_at_work());
  const bench::Peaks measured = bench::measure_peaks();
  set_num_threads(before);
  ProfilerPeaks peaks{.threads = measured.threads};
  for (const auto& a : measured.arithmetic)
    peaks.arithmetic.push_back({std::string(to_string(a.isa)), a.dtype == DType::bf16, a.gflops});
  for (const auto& m : measured.memory) peaks.memory.push_back({m.level, m.bytes, m.apart()});
  return peaks;
}

/// Of the same program, on the same machine.
void keep_faster(const ProfilerPeaks& before, ProfilerPeaks& peaks) {
  for (auto& a : peaks.arithmetic)
    for (const auto& b : before.arithmetic)
      if (a.isa == b.isa && a.bf16 == b.bf16) a.gflops = std::max(a.gflops, b.gflops);
  for (auto& m : peaks.memory)
    for (const auto& b : before.memory)
      if (m.level == b.level) m.gbytes = std::max(m.gbytes, b.gbytes);
}

/// Of the program with all that is linked to it: another build has another one.
std::string hash_of_program() {
  std::ifstream file("/proc/self/exe", std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  return fmt::format("{:016x}", std::hash<std::string_view>()(bytes));
}

/// What the figures are good for.
Json conditions() {
  return {{"cpu", cpu_name()},
          {"cores", std::thread::hardware_concurrency()},  // of the affinity
          {"amx", cpu_has(Isa::amx)},                      // not asked for under a cap
          {"build", hash_of_program()}};
}

/// {"of": conditions(), "peaks": [ProfilerPeaks::json(), for each number of threads]}
Json load(const fs::path& path) {
  std::ifstream file(path);
  const Json json = Json::parse(file, nullptr, false);
  const bool good = json.is_object() && json.value("of", Json()) == conditions() &&
                    json.value("peaks", Json()).is_array();
  return good ? json : Json{{"of", conditions()}, {"peaks", Json::array()}};
}

}  // namespace

ProfilerPeaks machine_peaks(bool again) { return machine_peaks(again, measure); }

ProfilerPeaks machine_peaks(bool again, const std::function<ProfilerPeaks()>& measure) {
  const auto path = cache_file();
  if (!path) return measure();
  Json kept = load(*path);
  std::optional<ProfilerPeaks> before;
  std::erase_if(kept.at("peaks").get_ref<Json::array_t&>(), [&](const Json& each) {
    const auto peaks = ProfilerPeaks::parse(each.dump());
    if (peaks && peaks->threads == threads_at_work()) before = peaks;
    return !peaks || peaks->threads == threads_at_work();
  });
  if (before && !again) return *before;
  ProfilerPeaks peaks = measure();
  if (before) keep_faster(*before, peaks);
  kept.at("peaks").push_back(Json::parse(peaks.json()));
  try {
    fs::create_directories(path->parent_path());
    write_text(*path, kept.dump(2) + "\n");
  } catch (const std::exception&) {  // measured again the next time
  }
  return peaks;
}

}  // namespace resnet50
