// Rows of 128 numbers out of a table and into it, at random: of one that a cache holds, and of a
// million rows.
#include <vector>

#include "quern/ops/kernels/lookup/lookup.h"
#include "quern/ops/kernels/table.h"
#include "suite.h"

namespace quern::bench {
namespace {

using namespace kernels;

constexpr int64_t kWidth = 128;
struct Size {
  int64_t rows, table;
};
constexpr Size kSizes[] = {{1024, 4096}, {131'072, 1'000'000}};
constexpr int64_t kPlaces = 8;  // of a segment

std::vector<int64_t> random_rows(const Size& size) {
  Random random(5);
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < size.rows; ++i) rows.push_back(random.below(size.table));
  return rows;
}

/// Every 7919th row, which is none twice: what is written is known.
std::vector<int64_t> distinct_rows(const Size& size) {
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < size.rows; ++i) rows.push_back(i * 7919 % size.table);
  return rows;
}

class CopyCase : public Case {
 public:
  CopyCase(const RowCopyKernel& kernel, const Size& size, bool gathers)
      : kernel_(kernel),
        size_(size),
        gathers_(gathers),
        index_(gathers ? random_rows(size) : distinct_rows(size)),
        from_(uniform(DType::f32, (gathers ? size.table : size.rows) * kWidth)),
        to_(result(DType::f32, (gathers ? size.rows : size.table) * kWidth)) {}

  void run() override {
    constexpr int64_t kBytes = kWidth * 4;
    copy_rows(kernel_, {.from = from_.data(),
                        .to = to_.data(),
                        .from_index = gathers_ ? index_.data() : nullptr,
                        .to_index = gathers_ ? nullptr : index_.data(),
                        .n = size_.rows,
                        .from_stride = kBytes,
                        .to_stride = kBytes,
                        .bytes = kBytes,
                        .stream = false});
  }

  std::string wrong() override {
    for (int64_t i = 0; i < size_.rows; ++i) {
      const int64_t row = index_[static_cast<size_t>(i)], c = i % kWidth;
      const double in = from_[(gathers_ ? row : i) * kWidth + c];
      const double out = to_[(gathers_ ? i : row) * kWidth + c];
      if (in != out) return fmt::format("column {} of row {} is {}, expected {}", c, i, out, in);
    }
    return {};
  }

 private:
  const RowCopyKernel& kernel_;
  const Size size_;
  const bool gathers_;
  const std::vector<int64_t> index_;
  Operand &from_, &to_;
};

class SumCase : public Case {
 public:
  SumCase(const SegmentSumKernel& kernel, const Size& size)
      : kernel_(kernel),
        size_(size),
        index_(random_rows(size)),
        from_(uniform(kernel.from, size.table * kWidth)),
        to_(result(kernel.to, size.rows / kPlaces * kWidth)) {
    for (int64_t i = 0; i <= size.rows; i += kPlaces) offsets_.push_back(i);
  }

  void run() override {
    segment_sum(kernel_, {.from = from_.data(),
                          .from_stride = kWidth,
                          .index = index_.data(),
                          .weight = nullptr,
                          .offsets = offsets_.data(),
                          .segments = size_.rows / kPlaces,
                          .to = to_.data(),
                          .to_stride = kWidth,
                          .to_index = nullptr,
                          .width = kWidth,
                          .add = false});
  }

  /// kPlaces roundings of sums below kPlaces, and that of the result.
  std::string wrong() override {
    return compare_some(
        to_,
        [&](int64_t i) {
          double sum = 0;
          for (int64_t j = i / kWidth * kPlaces; j < (i / kWidth + 1) * kPlaces; ++j)
            sum += from_[index_[static_cast<size_t>(j)] * kWidth + i % kWidth];
          return sum;
        },
        [&](int64_t, double expected) {
          return kPlaces * kPlaces * 0x1p-24 + unit_roundoff(to_.dtype()) * expected;
        });
  }

 private:
  const SegmentSumKernel& kernel_;
  const Size size_;
  const std::vector<int64_t> index_;
  std::vector<int64_t> offsets_;
  Operand &from_, &to_;
};

std::string name_of(const char* kernel, const char* what, const Size& size) {
  return fmt::format("lookup/{}{}/{}x{}of{}", kernel, what, size.rows, kWidth, size.table);
}

}  // namespace

void add_lookup(const Options& options, Benchmarks& benchmarks) {
  const auto any = [](const RowCopyKernel&) { return true; };
  for (const Size& size : kSizes) {
    each_wanted(options, table<RowCopyKernel>(), select_row_copy(), any, [&](const auto& kernel) {
      for (const bool gathers : {true, false})
        benchmarks.push_back({.name = name_of(kernel.name, gathers ? "/gather" : "/scatter", size),
                              .dtype = DType::f32,
                              .flop = 0,
                              .bytes = static_cast<double>(2 * size.rows * kWidth * 4),
                              .make = [&kernel, size, gathers] {
                                return std::make_unique<CopyCase>(kernel, size, gathers);
                              }});
    });
    for (const SegmentSumKernel* k : table<SegmentSumKernel>()) {
      if (!isa_enabled(k->isa) || !options.wants(k->name, k == &select_segment_sum(k->from, k->to)))
        continue;
      const double read = static_cast<double>(size.rows * kWidth * itemsize(k->from));
      const double written = static_cast<double>(size.rows / kPlaces * kWidth * itemsize(k->to));
      benchmarks.push_back({.name = name_of(k->name, "", size),
                            .dtype = k->from,
                            .flop = 0,
                            .bytes = read + written,
                            .make = [k, size] { return std::make_unique<SumCase>(*k, size); }});
    }
  }
}

}  // namespace quern::bench
