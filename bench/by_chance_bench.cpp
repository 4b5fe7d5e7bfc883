// Rounding by chance, of what a cache holds and of what it does not.
#include "quern/ops/kernels/round/by_chance.h"
#include "quern/tensor/parallel.h"
#include "suite.h"

namespace quern::bench {
namespace {

using namespace kernels;

constexpr uint64_t kSeed = 7, kStream = 3;

class ByChanceCase : public Case {
 public:
  ByChanceCase(const ByChanceKernel& kernel, int64_t n)
      : kernel_(kernel), from_(uniform(DType::f32, n)), to_(result(kernel.to, n)) {}

  void run() override {
    parallel_chunks(from_.count(), 1 << 14, [&](int64_t begin, int64_t end) {
      kernel_.run({static_cast<const float*>(from_.at(begin)), to_.at(begin), begin, end - begin,
                   kSeed, kStream});
    });
  }

  /// No element is as far off as its neighbours are apart: 2^-7 of it, or of f16 2^-10.
  std::string wrong() override {
    const double spacing = kernel_.to == DType::bf16 ? 0x1p-7 : 0x1p-10;
    return compare_some(
        to_, [&](int64_t i) { return static_cast<double>(from_[i]); },
        [&](int64_t, double expected) { return spacing * std::abs(expected) + 0x1p-24; });
  }

 private:
  const ByChanceKernel& kernel_;
  Operand &from_, &to_;
};

}  // namespace

void add_by_chance(const Options& options, Benchmarks& benchmarks) {
  for (const DType dtype : {DType::bf16, DType::f16})
    each_wanted(
        options, table<ByChanceKernel>(), select_by_chance("bench", dtype),
        [&](const ByChanceKernel& k) { return k.to == dtype; },
        [&](const ByChanceKernel& kernel) {
          for (const int64_t n : {65536, 1 << 24})
            benchmarks.push_back(
                {.name = fmt::format("round/{}/n{}", kernel.name, n),
                 .dtype = DType::f32,
                 .flop = 0,
                 .bytes = static_cast<double>(6 * n),
                 .make = [&kernel, n] { return std::make_unique<ByChanceCase>(kernel, n); }});
        });
}

}  // namespace quern::bench
