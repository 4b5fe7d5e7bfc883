// What bounds work on a machine, and the machine's peaks as text and as JSON.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "quern/nn/profiler.h"

namespace quern {

double ProfilerPeaks::gflops(bool bf16) const {
  double best = 0;
  for (const Arithmetic& a : arithmetic)
    if (bf16 || !a.bf16) best = std::max(best, a.gflops);
  return best;
}

ProfilerPeaks::Bound ProfilerPeaks::bound(int64_t flop, bool bf16, int64_t bytes) const {
  Bound bound;
  if (const double peak = gflops(bf16); peak > 0 && flop > 0)
    bound = {"arithmetic", 1e-9 * static_cast<double>(flop) / peak};
  if (memory.empty() || bytes <= 0) return bound;
  const auto holds = [&](const Memory& m) { return bytes <= m.bytes; };
  const auto found = std::ranges::find_if(memory, holds);
  const Memory& level = found == memory.end() ? memory.back() : *found;
  const double seconds = 1e-9 * static_cast<double>(bytes) / level.gbytes;
  return seconds > bound.seconds ? Bound{level.level, seconds} : bound;
}

std::string ProfilerPeaks::describe() const {
  std::string text = fmt::format("{} thread{}: {:.0f} GFLOP/s in f32, {:.0f} in bf16", threads,
                                 threads == 1 ? "" : "s", gflops(false), gflops(true));
  for (const Memory& m : memory)
    text += fmt::format("{} {} {:.1f}", &m == memory.data() ? ";" : ",", m.level, m.gbytes);
  return text + " GB/s";
}

std::string ProfilerPeaks::json() const {
  nlohmann::ordered_json json = {{"threads", threads},
                                 {"f32_gflops", gflops(false)},
                                 {"bf16_gflops", gflops(true)},
                                 {"arithmetic", nlohmann::ordered_json::array()},
                                 {"memory", nlohmann::ordered_json::array()}};
  for (const Arithmetic& a : arithmetic)
    json["arithmetic"].push_back(
        {{"isa", a.isa}, {"dtype", a.bf16 ? "bf16" : "f32"}, {"gflops", a.gflops}});
  for (const Memory& m : memory)
    json["memory"].push_back(
        {{"level", m.level}, {"bytes", m.bytes}, {"gbytes_per_second", m.gbytes}});
  return json.dump();
}

std::optional<ProfilerPeaks> ProfilerPeaks::parse(const std::string& text) try {
  const auto json = nlohmann::json::parse(text);
  ProfilerPeaks peaks{.threads = json.at("threads")};
  for (const auto& a : json.at("arithmetic"))
    peaks.arithmetic.push_back({a.at("isa"), a.at("dtype") == "bf16", a.at("gflops")});
  for (const auto& m : json.at("memory"))
    peaks.memory.push_back({m.at("level"), m.at("bytes"), m.at("gbytes_per_second")});
  const bool whole = peaks.gflops(false) > 0 && !peaks.memory.empty() &&
                     std::ranges::all_of(
                         peaks.memory, [](const Memory& m) { return m.bytes > 0 && m.gbytes > 0; });
  return whole ? std::optional(std::move(peaks)) : std::nullopt;
} catch (const nlohmann::json::exception&) {
  return std::nullopt;
}

}  // namespace quern
