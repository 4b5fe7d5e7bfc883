// What a process is given of the machine: what hwloc finds,
// and what Linux tells anyone in /proc and /sys.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace resnet50 {

struct Machine {
  std::vector<int> cpus = {};              // that this process may run on
  std::vector<int> online = {};            // all that are running; none: not told
  std::optional<double> quota = {};        // CPUs that its control groups leave it; none: all
  std::string quota_file = {};             // that says so
  std::vector<std::vector<int>> smt = {};  // those of `cpus` that share a core with another of them
  std::map<int, std::vector<int>> numa_nodes = {};  // those of `cpus` of each node that has any
  // Of the first CPU's clock; "": not told.
  std::string frequency_driver = {}, governor = {}, energy_preference = {};
  std::string huge_pages = {};  // "always", "madvise", "never"; "": not told
  std::string container = {};   // what tells that this is one; "": nothing does
  double load = 0;              // programs that ran in the last minute, on average

  /// CPUs to count on: those of the affinity, less what the quota takes away.
  double cores() const;
};

/// `root`: where /proc and /sys are, "" for the system's own. `cpus`: sched_getaffinity's. Cores
/// and nodes are those of this machine, or what hwloc's own variables (HWLOC_SYNTHETIC,
/// HWLOC_XMLFILE) tell it.
Machine inspect_machine(const std::string& root, std::vector<int> cpus);

/// Of the process; 0..n-1 where the system does not tell.
std::vector<int> affinity();

/// "0-3,8" to 0, 1, 2, 3, 8; what is no such list ends it.
std::vector<int> parse_cpu_list(const std::string& text);
/// The other way round.
std::string format_cpu_list(const std::vector<int>& cpus);

}  // namespace resnet50
