// quern_lessons: times the steps on one product, and checks what they computed.
// lessons.py makes tables of it, which ./dev lessons prints.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <vector>

#include "ladder.h"
#include "peaks.h"
#include "quern/tensor/check.h"
#include "quern/tensor/cpu_features.h"
#include "quern/tensor/dtype.h"
#include "quern/tensor/parallel.h"
#include "quern/tensor/storage.h"
#include "timing.h"

using namespace quern;
using namespace quern::lessons;

namespace {

/// A and B of numbers drawn at random, and C, in memory as tensors have it.
template <class T>
class Operands {
 public:
  explicit Operands(Size size)
      : size_(size),
        a_(size.m * size.k * int64_t{sizeof(T)}),
        b_(size.k * size.n * int64_t{sizeof(T)}),
        c_(size.m * size.n * int64_t{sizeof(float)}) {
    std::mt19937 random(1);
    std::uniform_real_distribution<float> uniform(-1, 1);
    const auto draw = [&] { return static_cast<T>(uniform(random)); };
    std::generate_n(a_.as<T>(), size.m * size.k, draw);
    std::generate_n(b_.as<T>(), size.k * size.n, draw);
  }

  void multiply(Gemm<T>* gemm) {
    gemm(size_, {a_.as<T>(), size_.k}, {b_.as<T>(), size_.n}, {c_.as<float>(), size_.n});
  }

  /// Some elements of C against f64: an error is at most (k + 1)·2^-24 of the products' sizes, and
  /// a few roundings more (Higham, "Accuracy and stability of numerical algorithms", 3.1).
  void check_result(const GemmLesson& lesson, Gemm<T>* gemm) {
    std::fill_n(c_.as<float>(), size_.m * size_.n, 0.0f);
    multiply(gemm);
    const Matrix<const T> left{a_.as<T>(), size_.k}, right{b_.as<T>(), size_.n};
    for (int64_t sample = 0; sample < 200; ++sample) {
      const int64_t i = sample * 7919 % size_.m, j = sample * 104729 % size_.n;
      double sum = 0, magnitude = 0;
      for (int64_t p = 0; p < size_.k; ++p) {
        const double product = static_cast<double>(left[i][p]) * static_cast<double>(right[p][j]);
        sum += product, magnitude += std::abs(product);
      }
      const double got = static_cast<double>(c_.as<float>()[i * size_.n + j]);
      check(std::abs(got - sum) <= static_cast<double>(size_.k + 8) * 0x1p-24 * magnitude,
            lesson.name, "C[{}][{}]: expected {}, got {}", i, j, sum, got);
    }
  }

 private:
  Size size_;
  Workspace a_, b_, c_;
};

template <class T>
Row row_of(int64_t step, Gemm<T>* gemm, Size size, const bench::PeaksByThreads& peaks) {
  const GemmLesson& lesson = kGemmLessons[step];
  const int threads = num_threads();
  const auto operands = std::make_shared<Operands<T>>(size);
  operands->check_result(lesson, gemm);
  return {{{"step", step},
           {"name", lesson.name},
           {"title", lesson.title},
           {"dtype", std::is_same_v<T, float> ? "f32" : "bf16"},
           {"threads", threads},
           {"peak_gflops", peaks.at(threads).gflops(dtype_of<T>)},
           {"emulated", lesson.bf16 == amx_tiles && !has_amx()}},
          2 * static_cast<double>(size.m * size.n * size.k),
          [=](double turn) {
            set_num_threads(threads);
            return median_seconds(turn, [&] { operands->multiply(gemm); });
          }};
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Times the steps of the lesson on GEMM; prints JSON");
  std::vector<int64_t> steps;
  Size size{512, 2048, 2048};
  app.add_option("--step", steps, "Only these [all]")
      ->check(CLI::Range(size_t{0}, std::size(kGemmLessons) - 1));
  std::vector<int64_t> sizes{size.m, size.n, size.k};
  app.add_option("--size", sizes, "M N K of C[m×n] += A[m×k]·B[k×n] [512 2048 2048]")
      ->expected(3)
      ->check(CLI::PositiveNumber);
  Turns turns(app);
  CLI11_PARSE(app, argc, argv);
  size = {sizes[0], sizes[1], sizes[2]};
  try {
    const int all_threads = num_threads();
    bench::PeaksByThreads peaks;
    std::vector<Row> rows;
    nlohmann::json missing = nlohmann::json::array();
    for (int64_t step = 0; step < std::ssize(kGemmLessons); ++step) {
      if (!steps.empty() && std::ranges::count(steps, step) == 0) continue;
      const GemmLesson& lesson = kGemmLessons[step];
      set_num_threads(lesson.threads ? all_threads : 1);
      if (!peaks.contains(num_threads())) peaks[num_threads()] = bench::measure_peaks();
      for (const DType dtype : {DType::f32, DType::bf16}) {
        if (dtype == DType::f32 ? !lesson.f32 : !lesson.bf16) continue;
        if (const char* reason = why_not(lesson, dtype))
          missing.push_back({{"step", step}, {"title", lesson.title}, {"reason", reason}});
        else if (dtype == DType::f32) rows.push_back(row_of(step, lesson.f32, size, peaks));
        else rows.push_back(row_of(step, lesson.bf16, size, peaks));
      }
    }
    time_rows(rows, turns);
    nlohmann::json all{
        {"cpu", cpu_name()}, {"isa", to_string(max_isa())},     {"m", size.m},       {"n", size.n},
        {"k", size.k},       {"rows", nlohmann::json::array()}, {"missing", missing}};
    for (const Row& row : rows) all["rows"].push_back(row.json);
    fmt::print("{}\n", all.dump(2));
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 1;
  }
}
