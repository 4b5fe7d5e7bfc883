#include "doctor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "console.h"
#include "machine.h"
#include "machine_peaks.h"
#include "quern/tensor/check.h"
#include "quern/tensor/cpu_features.h"
#include "quern/tensor/parallel.h"

namespace resnet50 {

using namespace quern;
using namespace std::string_literals;

namespace {

/// Something to do about it.
struct Finding {
  std::string what, cost, type;
};

void fact(std::string_view name, const std::string& text) {
  print(fmt::format("{:12} {}\n", name, text));
}

bool is_of_this_architecture(Isa isa) {
  try {
    return isa_from_string(to_string(isa)) == isa;
  } catch (const Error&) {
    return false;
  }
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

void tell_cpu() {
  fact("CPU", cpu_name());
  std::string others;
  for (const Isa isa : {Isa::amx, Isa::avx512_bf16, Isa::avx512, Isa::avx2, Isa::sve_bf16, Isa::sve,
                        Isa::neon_bf16, Isa::neon}) {
    const std::string reason = why_disabled(isa);
    if (!reason.empty() && is_of_this_architecture(isa))
      others += fmt::format("{}{}: {}", others.empty() ? "" : "; ", to_string(isa), reason);
  }
  fact("ISA", fmt::format("{}{}", to_string(max_isa()), others.empty() ? "" : " (" + others + ")"));
  const auto [l1, l2, l3] = cache_sizes();
  fact("caches",
       fmt::format("{} KiB L1, {} KiB L2 a core, {} MiB L3", l1 >> 10, l2 >> 10, l3 >> 20));
}

void tell_machine(const Machine& m) {
  fact("affinity", fmt::format("{} of {} CPUs: {}", m.cpus.size(),
                               std::max(m.online.size(), m.cpus.size()), format_cpu_list(m.cpus)));
  fact("quota", m.quota ? fmt::format("{:.4g} CPUs ({})", *m.quota, m.quota_file) : "none");
  fact("threads", fmt::format("{}", num_threads()));
  std::string cores;
  for (const auto& core : m.smt) cores += fmt::format(" {}", format_cpu_list(core));
  fact("SMT", cores.empty() ? "no two of them share a core" : "share a core:" + cores);
  std::string nodes;
  for (const auto& node : m.numa_nodes) nodes += fmt::format(" {}", format_cpu_list(node));
  fact("NUMA", nodes.empty() ? "not told"
                             : fmt::format("{} node{}:{}", m.numa_nodes.size(),
                                           m.numa_nodes.size() == 1 ? "" : "s", nodes));
  fact("governor", m.governor.empty() ? "not told" : m.governor);
  fact("huge pages", m.huge_pages.empty() ? "not told" : m.huge_pages);
  fact("container", m.container.empty() ? "no" : "yes (" + m.container + ")");
  fact("load", fmt::format("{:.2f}", m.load));
}

/// Of programs' malloc; tensors come from quern's own.
std::string allocator(const std::string& root) {
  std::ifstream file(root + "/proc/self/maps");
  const std::string maps{std::istreambuf_iterator<char>(file), {}};
  for (const char* name : {"tcmalloc", "jemalloc", "mimalloc"})
    if (maps.find(name) != maps.npos) return name;
  return "the C library's";
}

void tell_software(const std::string& root) {
  fact("allocator", "quern's for tensors, " + allocator(root) + " for the rest");
  std::string settings;
  for (const char* name :
       {"OMP_NUM_THREADS", "OMP_PROC_BIND", "OMP_PLACES", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT",
        "GOMP_CPU_AFFINITY", "KMP_AFFINITY", "KMP_BLOCKTIME", "QUERN_MAX_CPU_ISA", "QUERN_VERBOSE"})
    if (const std::string value = environment(name); !value.empty())
      settings += fmt::format("{}{}={}", settings.empty() ? "" : " ", name, value);
  fact("settings", settings.empty() ? "none of OMP_*, GOMP_*, KMP_*, QUERN_*" : settings);
}

std::vector<Finding> examine(const Machine& m) {
  std::vector<Finding> findings;
  const int threads = num_threads();
  const auto cpus = static_cast<int>(m.cpus.size());
  const int whole = std::max(1, static_cast<int>(m.cores()));
  if (m.online.size() > m.cpus.size())
    findings.push_back({fmt::format("the affinity leaves {} of {} CPUs", cpus, m.online.size()),
                        "the others may be idle; taskset or a container's cpuset said so",
                        fmt::format("taskset -c {} resnet50 ...", format_cpu_list(m.online))});
  if (m.quota && *m.quota < std::min(threads, cpus))
    findings.push_back(
        {fmt::format("a quota of {:.4g} CPUs for {} thread{}", *m.quota, threads,
                     threads == 1 ? "" : "s"),
         fmt::format("once they have used it up, all of them stand still for the rest of each "
                     "period: {:.0f}% of the time",
                     100 * (1 - *m.quota / std::min(threads, cpus))),
         *m.quota < 1 ? "docker run --cpus=1 ...  (Kubernetes: limits.cpu)"s
                      : fmt::format("export OMP_NUM_THREADS={}", whole)});
  if (threads > cpus)
    findings.push_back(
        {fmt::format("{} threads on {} CPU{}", threads, cpus, cpus == 1 ? "" : "s"),
         "threads that others wait for are not running: several times the time of as many as CPUs",
         fmt::format("export OMP_NUM_THREADS={}", whole)});
  if (!m.smt.empty() && threads > cpus - static_cast<int>(m.smt.size())) {
    std::vector<int> firsts = m.cpus;
    for (const auto& core : m.smt)
      std::erase_if(firsts, [&](int cpu) {
        return cpu != core[0] && std::ranges::find(core, cpu) != core.end();
      });
    findings.push_back({"threads share a core",
                        "they share its multipliers and caches, too: at best as fast as one",
                        fmt::format("taskset -c {} resnet50 ...", format_cpu_list(firsts))});
  }
  if (m.numa_nodes.size() > 1 && threads > static_cast<int>(m.numa_nodes[0].size()))
    findings.push_back({fmt::format("threads across {} NUMA nodes", m.numa_nodes.size()),
                        "much of what they read is another node's, further away",
                        "numactl --cpunodebind=0 --membind=0 resnet50 ...  (a process a node)"});
  if (m.governor == "powersave" || m.governor == "conservative")
    findings.push_back({"the frequency governor is " + m.governor,
                        "clocks rise late after a pause, most so with one image at a time",
                        "sudo cpupower frequency-set -g performance"});
  if (m.huge_pages == "never")
    findings.push_back({"no transparent huge pages",
                        "misses of the TLB wherever large tensors are walked",
                        "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"});
  if (m.load > cpus - threads + 0.5 && m.load > 0.5)
    findings.push_back({fmt::format("other programs run: {:.2f} in the last minute", m.load),
                        "all threads of an op wait for the one whose CPU is shared",
                        "ps -eo pcpu,pid,args --sort=-pcpu | head"});
  if (!has_bf16_arithmetic())
    findings.push_back({fmt::format("{} has no fast bf16 arithmetic", to_string(max_isa())),
                        "bf16 is slower here than f32", "resnet50 ...  (without --amp)"});
  if (environment("OMP_WAIT_POLICY") == "passive" || environment("OMP_WAIT_POLICY") == "PASSIVE")
    findings.push_back({"OMP_WAIT_POLICY=passive",
                        "threads sleep between ops and are woken for each",
                        "unset OMP_WAIT_POLICY"});
  return findings;
}

}  // namespace

void diagnose(const Options& options) {
  const Machine machine = inspect_machine(options.root, affinity());
  tell_cpu();
  tell_machine(machine);
  tell_software(options.root);
  fact("peaks", machine_peaks(options.measure).describe());
  const auto findings = examine(machine);
  print(findings.empty() ? "\nNothing to improve was found.\n" : "\n");
  for (const auto& [what, cost, type] : findings)
    print(fmt::format("warning: {}\n  costs: {}\n  type:  {}\n", what, cost, type));
}

}  // namespace resnet50
