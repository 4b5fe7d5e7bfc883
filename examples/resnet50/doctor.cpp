#include "doctor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "console.h"
#include "findings.h"
#include "machine.h"
#include "machine_peaks.h"
#include "quern/ops/kernels/gemm/micro_kernel.h"
#include "quern/tensor/check.h"
#include "quern/tensor/cpu_features.h"
#include "quern/tensor/parallel.h"

namespace resnet50 {

using namespace quern;

namespace {

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

/// Which tiles multiply, by dtype.
std::string tiles() {
  return fmt::format("f32 {}, bf16 {}", kernels::select_gemm_kernel(DType::f32).name,
                     kernels::select_gemm_kernel(DType::bf16).name);
}

void tell_kernels() {
  fact("kernels", tiles());
#ifdef __x86_64__
  if (isa_enabled(Isa::amx)) {
    const Isa cap = isa_cap();
    set_isa_cap(Isa::avx512_bf16);
    fact("without amx", tiles());
    set_isa_cap(cap);
  } else {
    const auto all = kernels::table<kernels::GemmKernel>();
    const auto amx = std::ranges::find(all, Isa::amx, &kernels::GemmKernel::isa);
    if (amx != all.end()) fact("with amx", fmt::format("bf16 {}", (*amx)->name));
  }
#endif
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
  tell_kernels();
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
  for (const auto& [node, here] : m.numa_nodes)
    nodes += fmt::format(" {}: {}", node, format_cpu_list(here));
  fact("NUMA", nodes.empty() ? "not told"
                             : fmt::format("{} node{},{}", m.numa_nodes.size(),
                                           m.numa_nodes.size() == 1 ? "" : "s", nodes));
  std::string clock;
  for (const std::string& part : {m.governor, m.frequency_driver, m.energy_preference})
    clock += part.empty() || clock.empty() ? part : ", " + part;
  fact("governor", clock.empty() ? "not told" : clock);
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

}  // namespace

void diagnose(const Options& options) {
  const Machine machine = inspect_machine(options.root, affinity());
  tell_cpu();
  tell_machine(machine);
  tell_software(options.root);
  const ProfilerPeaks peaks = machine_peaks(options.measure);
  fact("peaks", peaks.describe());
  const auto findings = examine(machine, peaks);
  print(findings.empty() ? "\nNothing to improve was found.\n" : "\n");
  for (const auto& [what, cost, type] : findings)
    print(fmt::format("warning: {}\n  costs: {}\n  type:  {}\n", what, cost, type));
}

}  // namespace resnet50
