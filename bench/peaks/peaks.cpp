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

/// A block for each thread, of `bytes` in all, with the passes over it.
class MemoryTest {
 public:
  MemoryTest(const MemoryPasses& passes, int64_t bytes, bool shared)
      : passes_(passes),
        // Two arrays for a copy; a read passes over both of them.
        array_(std::max<int64_t>(1024, bytes / num_threads() / 2 / 1024 * 1024)),
        shared_(shared) {
    for (int t = 0; t < num_threads(); ++t) blocks_.emplace_back(2 * array_);
    parallel_for(num_threads(), [&](int64_t t) { std::fill_n(of(t), 2 * array_, std::byte{}); });
  }
  double read() const {
    return gigabytes() / seconds([&](int64_t t) { passes_.read(of(t), 2 * array_); });
  }
  double copy() const {
    return gigabytes() / seconds([&](int64_t t) { passes_.copy(of(t), of(t) + array_, array_); });
  }
  double update() const {
    return 2 * gigabytes() / seconds([&](int64_t t) { passes_.update(of(t), 2 * array_); });
  }

 private:
  std::byte* of(int64_t thread) const {
    return blocks_[static_cast<size_t>(thread)].as<std::byte>();
  }
  double gigabytes() const { return 1e-9 * static_cast<double>(2 * array_ * num_threads()); }
  template <class Pass>
  double seconds(Pass pass) const {
    return seconds_a_pass(shared_, [&](int64_t t, int64_t repeats) {
      for (int64_t i = 0; i < repeats; ++i) pass(t);
    });
  }

  const MemoryPasses& passes_;
  const int64_t array_;
  const bool shared_;
  std::deque<Workspace> blocks_;  // which don't move
};

/// Of a level that holds so much, over `bytes`.
Peaks::Memory measure_memory(const MemoryPasses& passes, const char* level, int64_t holds,
                             int64_t bytes, bool shared) {
  const MemoryTest test(passes, bytes, shared);
  return {level, holds, test.read(), test.copy(), test.update()};
}

/// What these threads have of the third level: how much they read at more than the middle between
/// its rate, that of `least` bytes, and memory's. Its other cores may be those of other machines.
int64_t find_share(const MemoryPasses& passes, int64_t l3, int64_t least, double middle) {
  int64_t share = l3 / 2;
  while (share > least && MemoryTest(passes, share, true).read() < middle) share /= 2;
  return std::max(share, least);
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
    peaks.arithmetic.push_back({loop->name, loop->isa, loop->dtype, 1e-9 * flop / s});
  }

  const MemoryLoop* widest = &memory_portable;
  for (const MemoryLoop* loop : kMemory)
    if (cpu_has(loop->isa)) widest = loop;
  const auto [l1, l2, l3] = cache_sizes();
  const int64_t threads = num_threads();
  // Three quarters of a private level: room for what else lives there.
  peaks.memory.push_back(
      measure_memory(widest->near, "L1", threads * l1, threads * l1 / 4 * 3, false));
  peaks.memory.push_back(
      measure_memory(widest->near, "L2", threads * l2, threads * l2 / 4 * 3, false));
  const int64_t beyond = std::clamp<int64_t>(4 * l3, int64_t{256} << 20, int64_t{1} << 30);
  const Peaks::Memory memory = measure_memory(widest->far, "memory", INT64_MAX, beyond, true);
  if (l3 > 2 * threads * l2) {
    const int64_t least = std::min(l3 / 2, 4 * threads * l2);
    Peaks::Memory shared = measure_memory(widest->far, "L3", least, least, true);
    shared.bytes = find_share(widest->far, l3, least, (shared.read + memory.read) / 2);
    peaks.memory.push_back(shared);
  }
  peaks.memory.push_back(memory);
  return peaks;
}

}  // namespace quern::bench
