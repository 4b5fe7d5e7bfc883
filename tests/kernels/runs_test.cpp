// Several runs in one call of an elementwise kernel have the bits of a call each.
#include "records.h"

#include "quern/ops/kernels/elementwise/elementwise.h"

using namespace quern;
using namespace quern::kernels;
using namespace quern::test;

namespace {

constexpr int64_t kRuns = 5;

/// Values of both signs, some of them equal; none of which all functions make NaN.
std::vector<double> numbers(int64_t n, int64_t first) {
  std::vector<double> values;
  for (int64_t i = 0; i < n; ++i)
    values.push_back(static_cast<double>((first + i) * 7 % 13 - 4) / 2);
  return values;
}

/// call(n, a, b, y, mode) of `kernel` for runs together and alone. Where one operand is a value a
/// run, those of the other may be apart, or one for all.
template <class Kernel, class Call>
void check_runs(const Kernel& kernel, DType of_y, Call call) {
  CAPTURE(std::string(kernel.name));
  const DType scalar = kernel.dtype == DType::bf16 ? DType::f32 : kernel.dtype;
  for (const Run mode : {Run::dense_dense, Run::scalar_dense, Run::dense_scalar})
    for (const int64_t size : {1, 2, 7, 16, 33, 64})
      for (const int64_t step : {size, size + 3, int64_t{0}}) {
        if (mode == Run::dense_dense && step != size) continue;
        CAPTURE(size);
        CAPTURE(step);
        const bool one_a = mode == Run::scalar_dense, one_b = mode == Run::dense_scalar;
        const int64_t dense = (kRuns - 1) * step + size;
        Buffer a(one_a ? scalar : kernel.dtype, numbers(one_a ? kRuns : dense, 1));
        Buffer b(one_b ? scalar : kernel.dtype, numbers(one_b ? kRuns : dense, 5));
        Buffer together(of_y, kRuns * size), alone(of_y, kRuns * size);
        call(Runs(size, kRuns, step), a.data(), b.data(), together.data(), mode);
        for (int64_t r = 0; r < kRuns; ++r)
          call(Runs(size), a.at(r * (one_a ? 1 : step)), b.at(r * (one_b ? 1 : step)),
               alone.at(r * size), mode);
        REQUIRE(together.guarded());
        for (int64_t i = 0; i < kRuns * size; ++i)
          REQUIRE(
              (together[i] == alone[i] || (together[i] != together[i] && alone[i] != alone[i])));
      }
}

}  // namespace

TEST_CASE("several runs of a binary kernel are as each alone") {
  each_runnable(table<BinaryKernel>(), [](const BinaryKernel& kernel) {
    check_runs(kernel, kernel.dtype,
               [&](const Runs& n, const void* a, const void* b, void* y, Run mode) {
                 kernel.run(n, a, b, y, mode, 0.5, 2);
               });
  });
}

TEST_CASE("several runs of a comparison are as each alone") {
  each_runnable(table<ComparisonKernel>(), [](const ComparisonKernel& kernel) {
    check_runs(kernel, DType::boolean,
               [&](const Runs& n, const void* a, const void* b, void* y, Run mode) {
                 kernel.run(n, a, b, static_cast<bool*>(y), mode);
               });
  });
}
