// What a benchmark is: its name, its work, and how to make the operands, run it once and tell a
// wrong result.
#pragma once
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "operand.h"
#include "options.h"
#include "peaks.h"
#include "quern/tensor/cpu_features.h"

namespace quern::bench {

/// The operands of one benchmark and the kernel call on them.
class Case {
 public:
  virtual ~Case() = default;
  virtual void run() = 0;
  /// After the first run(): empty if the result is right, else what is wrong with it.
  virtual std::string wrong() = 0;
  void evict() const {
    for (const Operand& o : operands_) o.evict();
  }
  /// What it touches, which tells the level of memory it works in.
  int64_t operand_bytes() const {
    int64_t sum = 0;
    for (const Operand& o : operands_) sum += o.bytes();
    return sum;
  }

 protected:
  Operand& integers(DType dtype, int64_t count);
  Operand& uniform(DType dtype, int64_t count);
  Operand& result(DType dtype, int64_t count);  ///< NaN

 private:
  std::deque<Operand> operands_;  // which stay where they are
};

struct Benchmark {
  std::string name;         // family/kernel/layout/shape
  DType dtype;              // of the peak it is held against
  double flop;              // 0: only its traffic is told
  double nominal_flop = 0;  // convolutions: with the taps that fall on the padding
  double bytes;             // read and written at least
  std::function<std::unique_ptr<Case>()> make;
  bool one_thread = false;  // a single call of a kernel
};

using Benchmarks = std::vector<Benchmark>;

// The families. Each walks the registry of its kernels.
void add_gemm(const Options&, Benchmarks&);
void add_conv(const Options&, Benchmarks&);
void add_batch_norm(const Options&, Benchmarks&);
void add_join(const Options&, Benchmarks&);
void add_pool(const Options&, Benchmarks&);
void add_elementwise(const Options&, Benchmarks&);
void add_rows(const Options&, Benchmarks&);
void add_lookup(const Options&, Benchmarks&);
void add_optimizer(const Options&, Benchmarks&);
void add_by_chance(const Options&, Benchmarks&);

/// The lines of a shape file without comments and blanks. Error: not readable.
std::vector<std::string> read_shapes(const std::string& path);

/// Calls f on the records of `list` that fit, that this CPU can run and that the options ask for:
/// `dispatched` if no other.
template <class List, class Kernel, class Fits, class F>
void each_wanted(const Options& options, const List& list, const Kernel& dispatched, Fits fits,
                 F f) {
  for (const auto* record : list)
    if (fits(*record) && isa_enabled(record->isa) &&
        options.wants(record->name, record == &dispatched))
      f(*record);
}

}  // namespace quern::bench
