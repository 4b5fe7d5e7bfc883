#include "peaks.h"

#include <fmt/core.h>

#include <algorithm>
#include <deque>
#include <limits>
#include <nlohmann/json.hpp>

#include "clock.h"
#include "peak_kernel.h"
#include "quern/tensor/cpu_features.h"
#include "quern/tensor/dtype.h"
#include "quern/tensor/parallel.h"
#include "quern/tensor/storage.h"

namespace quern::bench {
namespace {

constexpr const ArithmeticLoop* kArithmetic[] = {
    &peak_f32_portable,
#ifdef __x86_64__
    &peak_f32_avx2,     &peak_f32_avx512, &peak_bf16_avx512_bf16, &peak_bf16_amx,
#endif
};
constexpr const MemoryLoop* kMemory[] = {
    &memory_portable,
#ifdef __x86_64__
    &memory_avx2,
    &memory_avx512,
#endif
};

/// Seconds of a pass, pass(thread, repeats), that runs on every thread at once; the fastest of
/// several. Of what a core has for itself the slowest thread counts, on its CPU's clock: one that
/// had to wait for its CPU does no harm. What the cores share (`shared`) they must use at the same
/// time.
template <class Pass>
double seconds_a_pass(bool shared, Pass pass) {
  constexpr double kLongEnough = 4e-3;
  constexpr int kRuns = 9;
  const auto seconds = [&](int64_t thread, int64_t repeats) {
    const double begin = seconds_on(CLOCK_THREAD_CPUTIME_ID);
    pass(thread, repeats);
    return seconds_on(CLOCK_THREAD_CPUTIME_ID) - begin;
  };
  int64_t repeats = 1;
  while (seconds(0, repeats) < kLongEnough) repeats *= 2;
  std::vector<double> of_thread(static_cast<size_t>(num_threads()));
  double best = std::numeric_limits<double>::infinity();
  for (int run = 0; run < kRuns; ++run) {
    const double all = seconds_of([&] {
      parallel_for(num_threads(),
                   [&](int64_t t) { of_thread[static_cast<size_t>(t)] = seconds(t, repeats); });
    });
    best = std::min(best, shared ? all : *std::ranges::max_element(of_thread));
  }
  return best / static_cast<double>(repeats);
}

Peaks::Memory measure_memory(const MemoryLoop& loop, const char* level, int64_t holds,
                             int64_t bytes_a_thread, bool shared) {
  // Two arrays for a copy; a read passes over both of them.
  const int64_t array = std::max<int64_t>(1024, bytes_a_thread / 2 / 1024 * 1024);
  std::deque<Workspace> blocks;  // which don't move
  for (int t = 0; t < num_threads(); ++t) blocks.emplace_back(2 * array);
  const auto of = [&](int64_t thread) {
    return blocks[static_cast<size_t>(thread)].as<std::byte>();
  };
  parallel_for(num_threads(), [&](int64_t t) { std::fill_n(of(t), 2 * array, std::byte{}); });
  const double gigabytes = 1e-9 * static_cast<double>(2 * array * num_threads());
  const double read = seconds_a_pass(shared, [&](int64_t t, int64_t repeats) {
    for (int64_t i = 0; i < repeats; ++i) loop.read(of(t), 2 * array);
  });
  const double copy = seconds_a_pass(shared, [&](int64_t t, int64_t repeats) {
    for (int64_t i = 0; i < repeats; ++i) loop.copy(of(t), of(t) + array, array);
  });
  const double update = seconds_a_pass(shared, [&](int64_t t, int64_t repeats) {
    for (int64_t i = 0; i < repeats; ++i) loop.update(of(t), 2 * array);
  });
  return {level, holds, gigabytes / read, gigabytes / copy, 2 * gigabytes / update};
}

}  // namespace

double Peaks::gflops(DType dtype) const {
  double best = 0;
  for (const Arithmetic& a : arithmetic)
    if (a.dtype == dtype || dtype == DType::bf16) best = std::max(best, a.gflops);
  return best;
}

const Peaks::Memory& Peaks::level(int64_t bytes) const {
  for (const Memory& m : memory)
    if (bytes <= m.bytes) return m;
  return memory.back();
}

void Peaks::print(std::FILE* out) const {
  fmt::print(out, "peaks on {} thread{}\n", threads, threads == 1 ? "" : "s");
  for (const Arithmetic& a : arithmetic)
    fmt::print(out, "  {:26} {:8.1f} GFLOP/s\n", a.name, a.gflops);
  for (const Memory& m : memory)
    fmt::print(out, "  {:26} {:8.1f} GB/s read, {:8.1f} copy, {:8.1f} update\n", m.level, m.read,
               m.copy, m.update);
}

nlohmann::json Peaks::json() const {
  nlohmann::json all;
  for (const Arithmetic& a : arithmetic) all["gflops"][a.name] = a.gflops;
  for (const Memory& m : memory)
    all["gbytes_per_second"][m.level] = {{"read", m.read}, {"copy", m.copy}, {"update", m.update}};
  return all;
}

Peaks measure_peaks() {
  Peaks peaks{num_threads(), {}, {}};
  for (const ArithmeticLoop* loop : kArithmetic) {
    if (!cpu_has(loop->isa)) continue;
    constexpr int64_t kRounds = 1000;
    const double s =
        seconds_a_pass(false, [&](int64_t, int64_t repeats) { loop->run(kRounds * repeats); });
    const double flop = static_cast<double>(loop->flop * kRounds * num_threads());
    peaks.arithmetic.push_back({loop->name, loop->dtype, 1e-9 * flop / s});
  }

  const MemoryLoop* widest = &memory_portable;
  for (const MemoryLoop* loop : kMemory)
    if (cpu_has(loop->isa)) widest = loop;
  const auto [l1, l2, l3] = cache_sizes();
  const int64_t threads = num_threads();
  // Three quarters of a private level, half of the shared one: room for what else lives there.
  peaks.memory.push_back(measure_memory(*widest, "L1", threads * l1, l1 / 4 * 3, false));
  peaks.memory.push_back(measure_memory(*widest, "L2", threads * l2, l2 / 4 * 3, false));
  if (l3 > 2 * threads * l2)
    peaks.memory.push_back(measure_memory(*widest, "L3", l3, l3 / 2 / threads, true));
  const int64_t beyond = std::clamp<int64_t>(4 * l3, int64_t{256} << 20, int64_t{1} << 30);
  peaks.memory.push_back(measure_memory(*widest, "memory", INT64_MAX, beyond / threads, true));
  return peaks;
}

}  // namespace quern::bench
