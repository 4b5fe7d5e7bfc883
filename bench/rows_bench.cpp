// Every function of rows: on few, which the second-level cache holds, and on many.
#include <algorithm>
#include <vector>

#include "quern/ops/kernels/reduce/row.h"
#include "quern/tensor/parallel.h"
#include "suite.h"

namespace quern::bench {
namespace {

using namespace kernels;

constexpr int64_t kColumns = 1000;  // ImageNet's classes
constexpr int64_t kGroup = 16;      // rows that sum_rows adds up

bool reads_dy(RowOp op) {
  return op == RowOp::softmax_backward || op == RowOp::log_softmax_backward;
}
bool writes_y(RowOp op) {
  return op != RowOp::sum && op != RowOp::sum_rows && op != RowOp::max && op != RowOp::log_sum_exp;
}
int64_t rows_a_call(RowOp op) { return op == RowOp::sum_rows ? kGroup : 1; }
int64_t out_a_call(RowOp op) { return op == RowOp::sum_rows ? kColumns : 2; }
/// Of `out`, the numbers that are results.
int64_t results(RowOp op) {
  return writes_y(op) || op == RowOp::sum_rows ? kColumns : op == RowOp::log_sum_exp ? 2 : 1;
}

const RowKernel& f64_reference(RowOp op) {
  for (const RowKernel* k : table<RowKernel>())
    if (k->op == op && k->dtype == DType::f64) return *k;
  fail("bench", "no f64 record of a row function");
}

class RowsCase : public Case {
 public:
  RowsCase(const RowKernel& kernel, int64_t rows)
      : kernel_(kernel),
        calls_(rows / rows_a_call(kernel.op)),
        x_(uniform(kernel.dtype, rows * kColumns)),
        dy_(uniform(kernel.dtype, reads_dy(kernel.op) ? x_.count() : 0)),
        y_(result(kernel.dtype, writes_y(kernel.op) ? x_.count() : 0)),
        out_(uniform(DType::f32, calls_ * out_a_call(kernel.op))),
        weight_(uniform(DType::f32, kColumns)) {}

  void run() override {
    parallel_chunks(
        calls_, std::max<int64_t>(1, kGroup / rows_a_call(kernel_.op)),
        [&](int64_t begin, int64_t end) {
          int64_t index;
          for (int64_t i = begin; i < end; ++i)
            kernel_.run(call(x_.at(i * rows_a_call(kernel_.op) * kColumns), dy_.at(i * kColumns),
                             y_.at(i * kColumns), out_.at(i * out_a_call(kernel_.op)),
                             weight_.data(), &index));
        });
  }

  std::string wrong() override {
    for (int64_t i : {int64_t{0}, calls_ / 2, calls_ - 1})
      if (std::string text = wrong_call(i); !text.empty()) return text;
    return {};
  }

 private:
  static Row call(const void* x, const void* dy, void* y, void* out, const void* weight,
                  int64_t* index) {
    return {.n = kColumns,
            .x = x,
            .dy = dy,
            .y = y,
            .out = out,
            .index = index,
            .rows = kGroup,
            .stride = kColumns,
            .weight = weight,
            .target = 1,
            .a = 0.75,
            .b = 0.125,
            .c = 0.5};
  }
  static std::vector<double> part(const Operand& o, int64_t begin, int64_t count) {
    std::vector<double> values(static_cast<size_t>(count));
    for (int64_t i = 0; i < count && o.count() > 0; ++i)
      values[static_cast<size_t>(i)] = o[begin + i];
    return values;
  }

  /// Call i against the f64 reference: no number meets more than n + 24 roundings, those of the
  /// functions (2 each) and of arguments below 2 in magnitude included.
  std::string wrong_call(int64_t i) const {
    const RowOp op = kernel_.op;
    const int64_t rows = rows_a_call(op);
    std::vector<double> x = part(x_, i * rows * kColumns, rows * kColumns),
                        dy = part(dy_, i * kColumns, kColumns), weight = part(weight_, 0, kColumns),
                        out = part(out_, i * out_a_call(op), out_a_call(op)), y(kColumns);
    int64_t index;
    f64_reference(op).run(call(x.data(), dy.data(), y.data(), out.data(), weight.data(), &index));

    const Operand& got = writes_y(op) ? y_ : out_;
    const std::vector<double>& expected = writes_y(op) ? y : out;
    const int64_t first = i * (writes_y(op) ? kColumns : out_a_call(op));
    double sum = 0;  // of dy as the function weighs it
    for (size_t k = 0; k < kColumns; ++k)
      sum += op == RowOp::softmax_backward ? x[k] * dy[k] : dy[k];
    for (int64_t k = 0; k < results(op); ++k) {
      const size_t at = static_cast<size_t>(k);
      // Magnitudes of what is added up; 4 is more than any other term has.
      const double terms = std::abs(expected[at]) + (reads_dy(op) ? 2 * std::exp(x[at]) * sum
                                                     : op >= RowOp::softmax ? 4
                                                                            : 0);
      const double computed = op == RowOp::max ? 0 : (kColumns + 24) * 0x1p-24 * terms;
      const double bound =
          computed + unit_roundoff(got.dtype()) * (std::abs(expected[at]) + computed);
      if (!(std::abs(got[first + k] - expected[at]) <= bound))
        return fmt::format("element {} is {}, expected {}", first + k, got[first + k],
                           expected[at]);
    }
    return {};
  }

  const RowKernel& kernel_;
  int64_t calls_;
  Operand &x_, &dy_, &y_, &out_, &weight_;
};

}  // namespace

void add_rows(const Options& options, Benchmarks& benchmarks) {
  for (DType dtype : options.dtypes)
    for (const RowKernel* k : table<RowKernel>()) {
      if (k->dtype != dtype || !isa_enabled(k->isa) ||
          !options.wants(k->name, k == &select_row("bench", k->op, dtype)))
        continue;
      for (int64_t rows : {16, 4096}) {
        const int64_t streams = 1 + reads_dy(k->op) + writes_y(k->op);
        benchmarks.push_back(
            {.name = fmt::format("rows/{}/{}x{}", k->name, rows, kColumns),
             .dtype = dtype,
             .flop = 0,
             .bytes = static_cast<double>(streams * rows * kColumns * itemsize(dtype)),
             .make = [k, rows] { return std::make_unique<RowsCase>(*k, rows); }});
      }
    }
}

}  // namespace quern::bench
