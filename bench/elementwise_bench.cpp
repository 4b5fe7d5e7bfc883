// Every elementwise function on runs that fit the second-level cache and on the largest activation
// of the network.
#include <algorithm>

#include "quern/ops/kernels/elementwise/elementwise.h"
#include "quern/tensor/parallel.h"
#include "suite.h"

namespace quern::bench {
namespace {

using namespace kernels;

constexpr int64_t kChunk = 1 << 15;  // elements of a cell, as the ops cut their tensors
constexpr double kP = 0.25, kQ = 0.75;

void run_kernel(const UnaryKernel& kernel, int64_t n, const void* a, const void*, void* y) {
  kernel.run(n, a, y, kP, kQ);
}
void run_kernel(const BinaryKernel& kernel, int64_t n, const void* a, const void* b, void* y) {
  kernel.run(n, a, b, y, Run::dense_dense, kP, kQ);
}

std::span<const UnaryKernel* const> records(const UnaryKernel&) { return table<UnaryKernel>(); }
std::span<const BinaryKernel* const> records(const BinaryKernel&) { return table<BinaryKernel>(); }

constexpr int operands(const UnaryKernel&) { return 1; }
constexpr int operands(const BinaryKernel&) { return 2; }

template <class Kernel>
class ElementwiseCase : public Case {
 public:
  ElementwiseCase(const Kernel& kernel, int64_t n)
      : kernel_(kernel),
        a_(uniform(kernel.dtype, n)),
        b_(uniform(kernel.dtype, operands(kernel) == 2 ? n : 0)),
        y_(result(kernel.dtype, n)) {}

  void run() override {
    parallel_chunks(y_.count(), kChunk, [&](int64_t begin, int64_t end) {
      run_kernel(kernel_, end - begin, a_.at(begin), b_.at(begin), y_.at(begin));
    });
  }

  /// Against the reference in f64. On operands below 1 no function's vector formula is off by more
  /// than 12 f32 roundoffs of the largest number in it (silu's derivative; the tests have a bound
  /// for each); bf16 rounds once more.
  std::string wrong() override {
    const Kernel& reference = f64_reference();
    return compare_some(
        y_,
        [&](int64_t i) {
          const double a = a_[i], b = operands(kernel_) == 2 ? b_[i] : 0;
          double y = 0;
          run_kernel(reference, 1, &a, &b, &y);
          return y;
        },
        [&](int64_t, double y) {
          const double computed = 12 * 0x1p-24 * std::max(1.0, std::abs(y));
          const bool stored = y_.dtype() == DType::bf16;
          return computed + (stored ? 0x1p-8 * (std::abs(y) + computed) : 0);
        });
  }

 private:
  const Kernel& f64_reference() const {
    for (const Kernel* k : records(kernel_))
      if (k->op == kernel_.op && k->dtype == DType::f64) return *k;
    fail("bench", fmt::format("no f64 reference of {}", kernel_.name));
  }

  const Kernel& kernel_;
  Operand &a_, &b_, &y_;
};

template <class Kernel>
void add_records(const Options& options, std::span<const Kernel* const> list,
                 Benchmarks& benchmarks) {
  const auto dispatched = [&](const Kernel& record) -> const Kernel& {
    for (const Kernel* k : list)
      if (k->op == record.op && k->dtype == record.dtype && isa_enabled(k->isa)) return *k;
    return record;
  };
  for (DType dtype : options.dtypes)
    for (const Kernel* k : list) {
      if (k->dtype != dtype || !isa_enabled(k->isa) ||
          !options.wants(k->name, &dispatched(*k) == k))
        continue;
      for (int64_t n : {int64_t{1} << 16, options.batch * 256 * 56 * 56}) {
        const auto streams = static_cast<double>(1 + operands(*k));
        benchmarks.push_back(
            {.name = fmt::format("elementwise/{}/n{}", k->name, n),
             .dtype = dtype,
             .flop = 0,
             .bytes = streams * static_cast<double>(n * itemsize(dtype)),
             .make = [k, n] { return std::make_unique<ElementwiseCase<Kernel>>(*k, n); }});
      }
    }
}

}  // namespace

void add_elementwise(const Options& options, Benchmarks& benchmarks) {
  add_records(options, table<UnaryKernel>(), benchmarks);
  add_records(options, table<BinaryKernel>(), benchmarks);
}

}  // namespace quern::bench
