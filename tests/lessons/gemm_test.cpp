// Every step of the lesson on GEMM against f64, within the bound of its arithmetic, on sizes where
// blocks, tiles and pairs end.
#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "conv/ladder.h"
#include "emulated_cpu.h"
#include "gemm/loops.h"
#include "kernels/gemm_oracle.h"
#include "ladder.h"
#include "quern/ops/kernels/conv/conv.h"
#include "tensor/threads.h"

using namespace quern;
using namespace quern::lessons;
using namespace quern::test;

namespace {

/// C += A·B of numbers drawn at random, in rows that are wider than the matrices; A, B and C end
/// where inaccessible pages begin.
template <class T>
void check_product(Gemm<T>* gemm, Size size, uint32_t seed) {
  const auto [m, n, k] = size;
  CAPTURE(m);
  CAPTURE(n);
  CAPTURE(k);
  const int64_t lda = k + 3, ldb = n + 1, ldc = n + 5;
  const DType dtype = dtype_of<T>;
  Elements a(dtype, (m - 1) * lda + k), b(dtype, (k - 1) * ldb + n);
  Elements c(DType::f32, (m - 1) * ldc + n);
  a.fill_random(seed), b.fill_random(seed + 1), c.fill_random(seed + 2);
  std::vector<double> before;
  for (int64_t i = 0; i < c.count(); ++i) before.push_back(c.get(i));
  gemm(size, {static_cast<const T*>(a.data()), lda}, {static_cast<const T*>(b.data()), ldb},
       {static_cast<float*>(c.data()), ldc});
  int64_t wrong = 0, overwritten = 0;
  for (int64_t at = 0; at < c.count(); ++at) {
    const int64_t i = at / ldc, j = at % ldc;
    if (j >= n) {
      overwritten += c.get(at) != before[static_cast<size_t>(at)];
      continue;
    }
    Sum sum;
    sum.add(before[static_cast<size_t>(at)]);
    for (int64_t p = 0; p < k; ++p) sum.add(a.get(i * lda + p) * b.get(p * ldb + j));
    wrong += !(std::fabs(c.get(at) - sum.value) <= sum.bound(DType::f32, k + 1));
  }
  CHECK(wrong == 0);
  CHECK(overwritten == 0);
}

/// Calls f with each product that this CPU runs: those of the first steps on any.
template <class F>
void each_product(F f) {
  int ran = 0;
  for (const GemmLesson& lesson : kGemmLessons) {
    CAPTURE(std::string(lesson.name));
    bool runs = false;
    if (lesson.f32 && isa_enabled(lesson.f32_isa)) runs = true, f(lesson.f32);
    if (lesson.bf16 && isa_enabled(lesson.bf16_isa)) runs = true, f(lesson.bf16);
    ran += runs;
    if (!runs) MESSAGE("skipped ", std::string(lesson.name), ": the CPU lacks its instructions");
  }
  CHECK(ran > 0);
}

}  // namespace

TEST_CASE("Each step equals f64 within the bound of its sums") {
  const std::vector<Size> sizes = {{1, 1, 1},    {1, 33, 2},   {15, 1, 31}, {14, 32, 32},
                                   {13, 31, 33}, {29, 65, 63}, {6, 16, 300}};
  each_product([&](auto* gemm) {
    uint32_t seed = 1;
    for (const Size& size : sizes) check_product(gemm, size, seed += 3);
  });
}

TEST_CASE("Each step equals f64 where blocks end") {
  if (kEmulatedCpu) {  // twenty million products, one by one
    MESSAGE("skipped: large products on an emulated CPU");
    return;
  }
  each_product([](auto* gemm) {
    for (const Size& size : {Size{300, 40, 5}, {5, 2100, 7}, {7, 3, 1100}, {150, 70, 530}})
      check_product(gemm, size, 5);
  });
}

TEST_CASE("Each step equals f64 on sizes drawn at random") {
  each_product([](auto* gemm) {
    uint32_t state = 3;
    const auto draw = [&](int64_t most) {
      state = state * 1664525u + 1013904223u;
      return 1 + static_cast<int64_t>(state >> 8) % most;
    };
    for (int i = 0; i < (kEmulatedCpu ? 4 : 20); ++i)
      check_product(gemm, {draw(40), draw(70), draw(90)}, state);
  });
}

TEST_CASE("Products on threads have the same bits with 1, 2 and 3") {
  const test::Threads kept;
  const Size size{70, 150, 600};
  Elements a(DType::f32, size.m * size.k), b(DType::f32, size.k * size.n);
  a.fill_random(1), b.fill_random(2);
  for (const GemmLesson& lesson : kGemmLessons) {
    if (!lesson.threads) continue;
    if (!isa_enabled(lesson.f32_isa)) {
      MESSAGE("skipped ", std::string(lesson.name), ": ", why_disabled(lesson.f32_isa));
      continue;
    }
    REQUIRE(static_cast<bool>(lesson.f32));
    std::vector<std::vector<float>> results;
    for (int threads : {1, 2, 3}) {
      set_num_threads(threads);
      std::vector<float>& c = results.emplace_back(static_cast<size_t>(size.m * size.n));
      lesson.f32(size, {static_cast<const float*>(a.data()), size.k},
                 {static_cast<const float*>(b.data()), size.n}, {c.data(), size.n});
    }
    CHECK(results[0] == results[1]);
    CHECK(results[0] == results[2]);
  }
}

TEST_CASE("The table of convolutions ends with the lessons, whose names are all different") {
  const auto all = kernels::table<kernels::ConvKernel>();
  const auto reference = std::ranges::find(all, &kernels::conv_kernel("reference"));
  const std::vector<const kernels::ConvKernel*> last(reference + 1, all.end());
  CHECK(last.size() == lesson_kernels().size() + conv_lesson_kernels().size());
  for (const auto added : {lesson_kernels(), conv_lesson_kernels()}) {
    for (const kernels::ConvKernel& kernel : added) {
      CHECK(std::ranges::count(last, &kernel) == 1);
      CHECK(&kernels::conv_kernel(kernel.name) == &kernel);
    }
  }
}
