#include "findings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "quern/tensor/cpu_features.h"
#include "quern/tensor/parallel.h"

namespace resnet50 {

using namespace quern;

namespace {

bool may_use(const std::string& isa) {
  constexpr Isa kTimed[] = {Isa::portable, Isa::avx2, Isa::avx512, Isa::avx512_bf16, Isa::amx};
  return std::ranges::any_of(kTimed, [&](Isa i) { return to_string(i) == isa && isa_enabled(i); });
}

/// Times were measured on another machine: bench/NOTES.md, "doctor".
class Examination {
 public:
  Examination(const Machine& m, const ProfilerPeaks& peaks) : m_(m), peaks_(peaks) {}

  std::vector<Finding> run() {
    affinity();
    quota();
    threads();
    cores();
    nodes();
    clocks();
    huge_pages();
    neighbours();
    instructions();
    waiting();
    return std::move(findings_);
  }

 private:
  void add(std::string what, std::string cost, std::string type) {
    findings_.push_back({std::move(what), std::move(cost), std::move(type)});
  }
  /// Of instructions that may be used.
  ProfilerPeaks peaks_left() const {
    ProfilerPeaks left = peaks_;
    std::erase_if(left.arithmetic, [](const auto& a) { return !may_use(a.isa); });
    return left;
  }
  std::string export_threads() const { return fmt::format("export OMP_NUM_THREADS={}", whole_); }

  void affinity() {
    if (m_.online.size() <= m_.cpus.size()) return;
    add(fmt::format("the affinity leaves {} of {} CPUs", cpus_, m_.online.size()),
        "the others may be idle; taskset or a container's cpuset said so",
        fmt::format("taskset -c {} resnet50 ...", format_cpu_list(m_.online)));
  }

  void quota() {
    const int at_once = std::min(threads_, cpus_);
    if (!m_.quota || *m_.quota >= at_once) return;
    add(fmt::format("a quota of {:.4g} CPU{} for {} thread{}", *m_.quota, *m_.quota == 1 ? "" : "s",
                    threads_, threads_ == 1 ? "" : "s"),
        fmt::format("once they have used it up, all of them stand still for the rest of each "
                    "period: {:.0f}% of the time (two threads on one CPU's quota: as fast as one "
                    "on average, p90 twice as long)",
                    100 * (1 - *m_.quota / at_once)),
        *m_.quota < 1 ? "docker run --cpus=1 ...  (Kubernetes: limits.cpu)" : export_threads());
  }

  void threads() {
    if (threads_ > cpus_)
      add(fmt::format("{} threads on {} CPU{}", threads_, cpus_, cpus_ == 1 ? "" : "s"),
          "threads that others wait for may not be running: 1.03 (two on one CPU) to 1.4 times the "
          "time (four on two)",
          export_threads());
    if (threads_ < whole_)
      add(fmt::format("{} thread{} for {} CPUs", threads_, threads_ == 1 ? "" : "s", whole_),
          fmt::format("{:.0f}% of the arithmetic is not used; one thread for two CPUs takes 1.86 "
                      "times as long",
                      100 * (1 - 1.0 * threads_ / whole_)),
          export_threads());
  }

  void cores() {
    const auto shared = static_cast<int>(m_.smt.size());
    if (shared == 0 || threads_ <= cpus_ - shared) return;
    std::vector<int> firsts = m_.cpus;
    for (const auto& core : m_.smt)
      std::erase_if(firsts, [&](int cpu) {
        return cpu != core[0] && std::ranges::find(core, cpu) != core.end();
      });
    add("threads share a core",
        "they share its multipliers and caches, too: at best as fast as one",
        fmt::format("taskset -c {} resnet50 ...", format_cpu_list(firsts)));
  }

  void nodes() {
    if (m_.numa_nodes.size() < 2 || threads_ < 2) return;
    const auto& [node, here] = *m_.numa_nodes.begin();
    const std::string bind = environment("OMP_PROC_BIND");
    const bool bound = !bind.empty() && bind != "false" && bind != "FALSE";
    if (bound && threads_ <= static_cast<int>(here.size())) return;
    add(fmt::format("threads across {} NUMA nodes", m_.numa_nodes.size()),
        "much of what they read is another node's, further away",
        fmt::format("numactl --cpunodebind={} --membind={} resnet50 ...  (a process a node)", node,
                    node));
  }

  /// Drivers that leave clocks to the CPU call their usual governor "powersave"; there the
  /// preference tells.
  void clocks() {
    const bool by_cpu = m_.frequency_driver.starts_with("intel_pstate") ||
                        m_.frequency_driver.starts_with("amd-pstate-epp");
    const char* const cost = "clocks rise late after a pause, most so with one image at a time";
    if (!by_cpu && (m_.governor == "powersave" || m_.governor == "conservative"))
      add("the frequency governor is " + m_.governor, cost,
          "sudo cpupower frequency-set -g performance");
    if (by_cpu && m_.energy_preference.ends_with("power"))
      add("the CPU's energy preference is " + m_.energy_preference, cost,
          "echo performance | sudo tee "
          "/sys/devices/system/cpu/cpu*/cpufreq/energy_performance_preference");
  }

  void huge_pages() {
    if (m_.huge_pages != "never") return;
    add("no transparent huge pages",
        "misses of the TLB wherever large tensors are walked; on a virtual machine none were seen "
        "(0.99)",
        "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled");
  }

  void neighbours() {
    if (m_.load <= cpus_ - threads_ + 0.5 || m_.load <= 0.5) return;
    add(fmt::format("other programs run: {:.2f} in the last minute", m_.load),
        "all threads of an op wait for the one whose CPU is shared: twice the time where another "
        "program takes one of two",
        "ps -eo pcpu,pid,args --sort=-pcpu | head");
  }

  void instructions() {
    const std::string cap = environment("QUERN_MAX_CPU_ISA");
    const ProfilerPeaks left = peaks_left();
    if (!cap.empty() && left.arithmetic.size() < peaks_.arithmetic.size())
      add(fmt::format("QUERN_MAX_CPU_ISA={}", cap),
          fmt::format("at most {:.0f} of {:.0f} GFLOP/s in f32, {:.0f} of {:.0f} in bf16",
                      left.gflops(false), peaks_.gflops(false), left.gflops(true),
                      peaks_.gflops(true)),
          "unset QUERN_MAX_CPU_ISA");
    if (!has_bf16_arithmetic())
      add(fmt::format("{} has no fast bf16 arithmetic", to_string(max_isa())),
          "bf16 is slower here than f32 (AVX2: 1.17 times the time)",
          "resnet50 ...  (without --amp)");
  }

  void waiting() {
    const std::string policy = environment("OMP_WAIT_POLICY");
    if (policy != "passive" && policy != "PASSIVE") return;
    add("OMP_WAIT_POLICY=" + policy,
        "threads sleep between ops and are woken for each: 1.08 times the time of an image",
        "unset OMP_WAIT_POLICY");
  }

  const Machine& m_;
  const ProfilerPeaks& peaks_;
  const int threads_ = num_threads();
  const int cpus_ = static_cast<int>(m_.cpus.size());
  const int whole_ = std::max(1, static_cast<int>(m_.cores()));
  std::vector<Finding> findings_;
};

}  // namespace

std::vector<Finding> examine(const Machine& machine, const ProfilerPeaks& peaks) {
  return Examination(machine, peaks).run();
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace resnet50
