#include "machine.h"

#include <fmt/format.h>
#include <hwloc.h>
#ifdef __linux__
#include <sched.h>
#endif

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>
#include <thread>

namespace resnet50 {
namespace {

namespace fs = std::filesystem;

/// "" if it cannot be read.
std::string read(const std::string& path) {
  std::ifstream file(path);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text;
}

/// CPUs that a control group leaves: "150000 100000" of cpu.max, or cpu.cfs_quota_us and _period_us
/// of the older version.
std::optional<double> quota_of(const std::string& folder, bool unified, std::string& file) {
  file = folder + (unified ? "/cpu.max" : "/cpu.cfs_quota_us");
  std::istringstream text(unified ? read(file)
                                  : read(file) + " " + read(folder + "/cpu.cfs_period_us"));
  double quota = 0, period = 0;
  if (text >> quota >> period && quota > 0 && period > 0) return quota / period;
  return std::nullopt;
}

/// The least of this process's groups and of those around them.
void find_quota(const std::string& root, Machine& machine) {
  std::istringstream groups(read(root + "/proc/self/cgroup"));
  for (std::string line; std::getline(groups, line);) {  // "0::/a/b", "3:cpu,cpuacct:/a/b"
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == line.npos) continue;
    const std::string kinds = ',' + line.substr(first + 1, second - first - 1) + ',';
    const bool unified = kinds == ",,";
    if (!unified && kinds.find(",cpu,") == kinds.npos) continue;
    for (const std::string& at : unified ? std::vector<std::string>{"", "/unified"}
                                         : std::vector<std::string>{"/cpu", "/cpu,cpuacct"}) {
      const std::string top = root + "/sys/fs/cgroup" + at;
      // In a container the group is mounted at the top, whatever its name outside is.
      for (fs::path group = line.substr(second + 1);; group = group.parent_path()) {
        std::string file;
        const auto quota = quota_of((top + group.string()), unified, file);
        if (quota && (!machine.quota || *quota < *machine.quota))
          machine.quota = quota, machine.quota_file = file.substr(root.size());
        if (!group.has_relative_path()) break;
      }
    }
  }
}

/// Cores and nodes, as hwloc finds them.
void find_topology(Machine& machine) {
  hwloc_topology_t made = nullptr;
  if (hwloc_topology_init(&made) != 0) return;
  const std::unique_ptr<hwloc_topology, decltype(&hwloc_topology_destroy)> topology(
      made, hwloc_topology_destroy);
  if (hwloc_topology_load(made) != 0) return;
  const auto each = [&](hwloc_obj_type_t type, auto f) {
    for (hwloc_obj_t at = nullptr; (at = hwloc_get_next_obj_by_type(made, type, at)) != nullptr;) {
      std::vector<int> here;
      for (const int cpu : machine.cpus)
        if (hwloc_bitmap_isset(at->cpuset, static_cast<unsigned>(cpu))) here.push_back(cpu);
      if (!here.empty()) f(static_cast<int>(at->os_index), std::move(here));
    }
  };
  each(HWLOC_OBJ_CORE, [&](int, std::vector<int> here) {
    if (here.size() > 1) machine.smt.push_back(std::move(here));
  });
  each(HWLOC_OBJ_NUMANODE,
       [&](int node, std::vector<int> here) { machine.numa_nodes[node] = std::move(here); });
}

}  // namespace

double Machine::cores() const {
  const auto all = static_cast<double>(cpus.size());
  return quota ? std::min(*quota, all) : all;
}

std::vector<int> affinity() {
  std::vector<int> cpus;
#ifdef __linux__
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0)
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
      if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
#endif
  for (int i = 0; cpus.empty() && i < static_cast<int>(std::thread::hardware_concurrency()); ++i)
    cpus.push_back(i);
  return cpus;
}

std::vector<int> parse_cpu_list(const std::string& text) {
  std::vector<int> cpus;
  std::istringstream list(text);
  for (std::string range; std::getline(list, range, ',');) {
    int first = 0, last = 0;
    const int found = std::sscanf(range.c_str(), "%d-%d", &first, &last);
    if (found < 1 || first < 0 || (found == 2 && (last < first || last - first > 1 << 16))) break;
    for (int cpu = first; cpu <= (found == 2 ? last : first); ++cpu) cpus.push_back(cpu);
  }
  return cpus;
}

std::string format_cpu_list(const std::vector<int>& cpus) {
  std::string text;
  for (size_t i = 0; i < cpus.size();) {
    size_t end = i + 1;
    while (end < cpus.size() && cpus[end] == cpus[end - 1] + 1) ++end;
    text += fmt::format("{}{}", text.empty() ? "" : ",", cpus[i]);
    if (end - i > 1) text += fmt::format("-{}", cpus[end - 1]);
    i = end;
  }
  return text;
}

Machine inspect_machine(const std::string& root, std::vector<int> cpus) {
  Machine machine{.cpus = std::move(cpus)};
  find_quota(root, machine);

  const std::string system = root + "/sys/devices/system";
  machine.online = parse_cpu_list(read(system + "/cpu/online"));
  find_topology(machine);

  const auto of_clock = [&](const char* file) {
    return machine.cpus.empty()
               ? ""
               : read(fmt::format("{}/cpu/cpu{}/cpufreq/{}", system, machine.cpus[0], file));
  };
  machine.frequency_driver = of_clock("scaling_driver");
  machine.governor = of_clock("scaling_governor");
  machine.energy_preference = of_clock("energy_performance_preference");
  const std::string pages = read(root + "/sys/kernel/mm/transparent_hugepage/enabled");
  const size_t begin = pages.find('['), end = pages.find(']');
  if (begin < end && end != pages.npos)
    machine.huge_pages = pages.substr(begin + 1, end - begin - 1);

  std::error_code none;
  for (const char* file : {"/.dockerenv", "/run/.containerenv", "/run/systemd/container"})
    if (fs::exists(root + file, none)) machine.container = file;
  const std::string groups = read(root + "/proc/self/cgroup");
  for (const char* name : {"docker", "kubepods", "containerd", "libpod", "lxc"})
    if (machine.container.empty() && groups.find(name) != groups.npos)
      machine.container = fmt::format("{} in /proc/self/cgroup", name);
  std::istringstream(read(root + "/proc/loadavg")) >> machine.load;
  return machine;
}

}  // namespace resnet50
