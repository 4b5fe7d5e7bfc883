// Every lookup record against its formula: rows moved must have the very bits, sums stay within the
// rounding of as many terms.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>

#include "kernels/records.h"
#include "quern/ops/kernels/lookup/lookup.h"
#include "quern/ops/kernels/table.h"
#include "quern/tensor/storage.h"

using namespace quern;
using namespace quern::kernels;
using quern::test::Buffer;
using quern::test::close;
using quern::test::each_runnable;

namespace {

constexpr int64_t kRows = 9;  // of the table
const std::vector<int64_t> kWidths = {1, 2, 3, 15, 16, 17, 63, 64, 65, 127, 128, 129, 300};

double number(int64_t i) { return static_cast<double>((i * 37 + 11) % 101 - 50) / 8; }

Buffer filled(DType dtype, int64_t n) {
  Buffer buffer(dtype, n);
  for (int64_t i = 0; i < n; ++i) buffer.set(i, number(i));
  return buffer;
}

}  // namespace

TEST_CASE("rows are copied as they are") {
  const std::vector<int64_t> from{3, 0, 8, 8, 5}, to{1, 7, 0, 4, 2};
  const auto n = static_cast<int64_t>(from.size());
  each_runnable(table<RowCopyKernel>(), [&](const RowCopyKernel& kernel) {
    for (const int64_t bytes : kWidths)
      for (const int64_t gap : {0, 5})
        for (const bool gathers : {false, true})
          for (const bool scatters : {false, true}) {
            CAPTURE(bytes);
            const int64_t stride = bytes + gap;
            Buffer in = filled(DType::u8, kRows * stride), out(DType::u8, kRows * stride);
            for (int64_t i = 0; i < kRows * stride; ++i) in.set(i, static_cast<double>(i % 251));
            for (int64_t i = 0; i < kRows * stride; ++i) out.set(i, 255);
            kernel.run({.from = in.data(),
                        .to = out.data(),
                        .from_index = gathers ? from.data() : nullptr,
                        .to_index = scatters ? to.data() : nullptr,
                        .n = n,
                        .from_stride = stride,
                        .to_stride = stride,
                        .bytes = bytes,
                        .stream = false});
            std::vector<double> expected(static_cast<size_t>(kRows * stride), 255);
            for (int64_t i = 0; i < n; ++i)
              for (int64_t b = 0; b < bytes; ++b) {
                const auto k = static_cast<size_t>(i);
                expected[static_cast<size_t>((scatters ? to[k] : i) * stride + b)] =
                    in[(gathers ? from[k] : i) * stride + b];
              }
            REQUIRE(out.values() == expected);
            REQUIRE(out.guarded());
          }
  });
}

TEST_CASE("rows are copied past the caches") {
  each_runnable(table<RowCopyKernel>(), [&](const RowCopyKernel& kernel) {
    constexpr int64_t kBytes = 192, kCount = 100;
    const Workspace in(kCount * kBytes), out(kCount * kBytes);
    std::vector<int64_t> index;
    for (int64_t i = 0; i < kCount; ++i) index.push_back(i * 7 % kCount);
    for (int64_t i = 0; i < kCount * kBytes; ++i) in.as<char>()[i] = static_cast<char>(i % 127);
    kernel.run({.from = in.as<char>(),
                .to = out.as<char>(),
                .from_index = nullptr,
                .to_index = index.data(),
                .n = kCount,
                .from_stride = kBytes,
                .to_stride = kBytes,
                .bytes = kBytes,
                .stream = true});
    for (int64_t i = 0; i < kCount; ++i)
      REQUIRE(std::memcmp(out.as<char>() + index[static_cast<size_t>(i)] * kBytes,
                          in.as<char>() + i * kBytes, kBytes) == 0);
  });
}

TEST_CASE("segments are summed within the rounding of their terms") {
  const std::vector<int64_t> index{3, 3, 0, 8, 1, 2, 3, 4, 5, 6, 7};
  const std::vector<int64_t> offsets{1, 1, 3, 4, 11}, to_index{6, 0, 8, 2};
  const int64_t segments = 4;
  each_runnable(table<SegmentSumKernel>(), [&](const SegmentSumKernel& kernel) {
    const bool wide = kernel.to == DType::f64;
    const DType sums = wide ? DType::f64 : DType::f32;
    // Eight terms at most, each rounded as a product and as a sum; of f64 on either side.
    const double bound = 1.0001 * (wide ? 2 * 17 * 0x1p-53 : 17 * 0x1p-24);
    const double final = kernel.to == DType::bf16 ? 0x1p-8 : kernel.to == DType::f16 ? 0x1p-11 : 0;
    for (const int64_t width : kWidths)
      for (const bool indexed : {false, true})
        for (const bool weighted : {false, true})
          for (const bool add : {false, true}) {
            CAPTURE(width);
            CAPTURE(indexed);
            CAPTURE(weighted);
            CAPTURE(add);
            const int64_t stride = width + 3;
            Buffer from = filled(kernel.from, 11 * stride), weight(sums, 11);
            for (int64_t j = 0; j < 11; ++j) weight.set(j, 1 / static_cast<double>(j + 3));
            Buffer to(kernel.to, kRows * stride);
            const double before = add ? 0.75 : std::nan("");
            for (int64_t i = 0; i < kRows * stride; ++i) to.set(i, before);
            kernel.run({.from = from.data(),
                        .from_stride = stride,
                        .index = indexed ? index.data() : nullptr,
                        .weight = weighted ? weight.data() : nullptr,
                        .offsets = offsets.data(),
                        .segments = segments,
                        .to = to.data(),
                        .to_stride = stride,
                        .to_index = indexed ? to_index.data() : nullptr,
                        .width = width,
                        .add = add});
            REQUIRE(to.guarded());
            for (int64_t s = 0; s < segments; ++s) {
              const auto k = static_cast<size_t>(s);
              const int64_t row = indexed ? to_index[k] : s;
              for (int64_t c = 0; c < stride; ++c) {
                double sum = add ? before : 0, magnitude = sum;
                for (int64_t j = offsets[k]; j < offsets[k + 1] && c < width; ++j) {
                  const double term =
                      (weighted ? weight[j] : 1) *
                      from[(indexed ? index[static_cast<size_t>(j)] : j) * stride + c];
                  sum += term, magnitude += std::abs(term);
                }
                const double got = to[row * stride + c];
                if (c >= width) REQUIRE((add ? got == before : std::isnan(got)));
                else REQUIRE(std::abs(got - sum) <= bound * magnitude + final * std::abs(sum));
              }
            }
          }
  });
}

TEST_CASE("dispatch of lookups") {
  CHECK_THROWS_WITH_AS(
      select_segment_sum(DType::f64, DType::f32),
      "[segment_sum] rows: expected f32, bf16, f16 or f64 that are summed in it, got f64 to f32",
      Error);
  test::each_cap({Isa::portable, Isa::avx2, Isa::avx512}, table<SegmentSumKernel>(), [](Isa isa) {
    CHECK(std::string(select_row_copy().name) == "copy_rows_" + std::string(to_string(isa)));
    CHECK(select_segment_sum(DType::f64, DType::f64).name ==
          fmt::format("segment_sum_f64_f64_{}", to_string(isa)));
    for (const DType from : {DType::bf16, DType::f16})
      for (const DType to : {from, DType::f32})
        CHECK(select_segment_sum(from, to).name ==
              fmt::format("segment_sum_{}_{}_{}", from, to, to_string(isa)));
  });
}
