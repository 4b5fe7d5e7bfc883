#include "quern/ops/rows.h"

#include <algorithm>
#include <cmath>

#include "gradcheck_helper.h"
#include "quern/ops/binary.h"
#include "quern/ops/cat.h"
#include "quern/ops/convert.h"
#include "quern/ops/embedding.h"
#include "quern/ops/layer_norm.h"
#include "quern/ops/linear.h"
#include "quern/ops/loss.h"
#include "quern/ops/matmul.h"
#include "quern/ops/reshape.h"
#include "quern/ops/softmax.h"
#include "quern/ops/sum.h"
#include "quern/tensor/parallel.h"
#include "tensor/threads.h"

using namespace quern;
using namespace quern::test;

namespace {

/// The element-wise definition, in f64.
Tensor expected(const Tensor& table, const Tensor& indices, const Tensor& rows, bool add) {
  const Tensor result = raw::to(raw::clone(table), DType::f64);
  const auto index = indices.to_vector<int64_t>();
  const auto values = rows.to_vector<double>();
  double* out = result.out<double>();
  const int64_t width = table.size(1);
  for (size_t i = 0; i < index.size(); ++i)
    for (int64_t c = 0; c < width; ++c) {
      double& at = out[index[i] * width + c];
      at = values[i * static_cast<size_t>(width) + static_cast<size_t>(c)] + (add ? at : 0);
    }
  return raw::to(result, table.dtype());
}

/// Sums of f32 in the order of the list.
void add_one_by_one(const Tensor& table, const Tensor& indices, const Tensor& rows) {
  const auto index = indices.to_vector<int64_t>();
  const int64_t width = table.size(1);
  for (size_t i = 0; i < index.size(); ++i)
    for (int64_t c = 0; c < width; ++c)
      table.out<float>()[index[i] * width + c] +=
          rows.data<float>()[static_cast<int64_t>(i) * width + c];
}

/// A table whose rows lie apart.
Tensor spread_rows(const Tensor& t) {
  const Tensor wide = full({t.size(0), t.size(1) + 3}, std::nan(""), t.dtype());
  const Tensor rows = raw::slice(wide, 1, 1, t.size(1) + 1);
  raw::copy_(rows, t);
  return rows;
}

}  // namespace

TEST_CASE("rows out of a table and into it, whatever the strides") {
  const Tensor indices = from_vector<int64_t>({3, 0, 3, 2, 6, 0});
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32, DType::f64})
    for (const int64_t width : {1, 5, 128}) {
      const Tensor table = random({7, width}, 1, dtype), rows = random({6, width}, 2, dtype);
      const Tensor gathered = full({6, width}, std::nan(""), dtype);
      gather_rows(table, indices, gathered);
      for (const auto& layout : {raw::clone, spread_rows, strided}) {
        const Tensor out = layout(rows);
        gather_rows(layout(table), strided(indices), out);
        CHECK(same_bits(out, gathered));
        const Tensor stored = layout(table), added = layout(table);
        scatter_rows(stored, strided(indices), layout(rows));
        CHECK(same_bits(stored, expected(table, indices, rows, false)));
        scatter_add_rows(added, strided(indices), layout(rows));
        // At most three terms of at most 1 each; bf16 and f16 are rounded once.
        const double bound = dtype == DType::bf16  ? 3 * 0x1p-9
                             : dtype == DType::f16 ? 3 * 0x1p-12
                             : dtype == DType::f32 ? 3 * 0x1p-23
                                                   : 0;
        CHECK(max_abs_difference(added, expected(table, indices, rows, true)) <= 2 * bound);
      }
      for (int64_t i = 0; i < 6; ++i)
        CHECK(
            same_bits(raw::select(gathered, 0, i),
                      raw::select(table, 0, indices.to_vector<int64_t>()[static_cast<size_t>(i)])));
    }
}

TEST_CASE("rows of integers, of no rows and of no elements") {
  const Tensor table = randint(0, 1000, {5, 4}), out = zeros({2, 4}, DType::i64);
  gather_rows(table, from_vector<int64_t>({4, 4}), out);
  CHECK(same_bits(raw::select(out, 0, 1), raw::select(table, 0, 4)));
  const Tensor none = zeros({0}, DType::i64), before = raw::clone(table);
  gather_rows(table, none, zeros({0, 4}, DType::i64));
  scatter_rows(table, none, zeros({0, 4}, DType::i64));
  CHECK(same_bits(table, before));
  scatter_add_rows(zeros({5, 0}), from_vector<int64_t>({4}), zeros({1, 0}));
  scatter_add_rows(zeros({0, 3}), none, zeros({0, 3}));
}

TEST_CASE("rows of lists with and without doubles, few and many beside the table") {
  for (const auto& [table_rows, n] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 9}, {40, 300}, {64, 64}, {200, 90}, {5000, 19}, {5000, 20}, {30'000, 100}}) {
    CAPTURE(table_rows);
    const Tensor any = randint(0, table_rows, {n}), twice = raw::clone(any), once = arange(n);
    twice.out<int64_t>()[n - 1] = any.data<int64_t>()[0];
    for (const Tensor& indices : {any, twice, once}) {
      if (indices.is_same(once) && n > table_rows) continue;
      const Tensor table = random({table_rows, 3}, 1, DType::f32);
      const Tensor rows = random({n, 3}, 2, DType::f32);
      const Tensor stored = raw::clone(table), added = raw::clone(table),
                   one_by_one = raw::clone(table);
      scatter_rows(stored, indices, rows);
      CHECK(same_bits(stored, expected(table, indices, rows, false)));
      scatter_add_rows(added, indices, rows);
      add_one_by_one(one_by_one, indices, rows);
      CHECK(same_bits(added, one_by_one));
    }
  }
}

TEST_CASE("a million times the same row") {
  constexpr int64_t kMany = 1 << 20;
  const Tensor table = zeros({3, 2}), ones_ = ones({kMany, 2});
  scatter_add_rows(table, full({kMany}, 1, DType::i64), ones_);
  CHECK(table.to_vector<double>() == std::vector<double>{0, 0, kMany, kMany, 0, 0});
  scatter_rows(table, full({kMany}, 1, DType::i64), ones_);
  CHECK(table.to_vector<double>() == std::vector<double>{0, 0, 1, 1, 0, 0});
}

TEST_CASE("rows come out with the same bits for any number of threads") {
  const test::Threads kept;
  constexpr int64_t kLookups = 40'000, kTable = 5'000;
  const Tensor indices = randint(0, kTable, {kLookups});
  const Tensor start = random({kTable, 33}, 1, DType::f32),
               rows = random({kLookups, 33}, 2, DType::f32);
  Tensors first;
  for (const int threads : {1, 2, 3}) {
    set_num_threads(threads);
    const Tensor out = zeros({kLookups, 33}), stored = raw::clone(start), added = raw::clone(start);
    gather_rows(start, indices, out);
    scatter_rows(stored, indices, rows);
    scatter_add_rows(added, indices, rows);
    if (first.empty()) first = {out, stored, added};
    CHECK(same_bits(out, first[0]));
    CHECK(same_bits(stored, first[1]));
    CHECK(same_bits(added, first[2]));
  }
  CHECK(same_bits(first[1], expected(start, indices, rows, false)));
  const Tensor in_order = raw::clone(start);
  add_one_by_one(in_order, indices, rows);
  CHECK(same_bits(first[2], in_order));
}

TEST_CASE("a row that is there many times is summed in parts, to the same bits") {
  const test::Threads kept;
  constexpr int64_t kLookups = 60'000, kWidth = 200;  // 8 of 10 the same row: 19 MB of bf16
  const Tensor indices = randint(0, 10, {kLookups});
  for (int64_t i = 0; i < kLookups; ++i)
    if (int64_t& row = indices.out<int64_t>()[i]; row > 2) row = 1;
  const Tensor start = random({4, kWidth}, 1, DType::f32),
               rows = random({kLookups, kWidth}, 2, DType::f32);
  Tensor first;
  for (const int threads : {1, 2, 3}) {
    set_num_threads(threads);
    const Tensor added = raw::clone(start);
    scatter_add_rows(added, indices, rows);
    if (!first.defined()) first = added;
    CHECK(same_bits(added, first));
  }
  // Whole numbers, whose sums f32 holds.
  const Tensor whole = randint(-8, 9, {kLookups, kWidth});
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
    CAPTURE(dtype);
    const Tensor added = zeros({4, kWidth}, dtype), values = raw::to(whole, dtype);
    scatter_add_rows(added, indices, values);
    CHECK(same_bits(added, expected(zeros(added.shape(), dtype), indices, values, true)));
  }
}

TEST_CASE("writing rows moves the table's version on") {
  const Tensor table = zeros({4, 2}), indices = from_vector<int64_t>({1});
  const uint64_t before = table.version();
  scatter_rows(table, indices, ones({1, 2}));
  CHECK(table.version() == before + 1);
  scatter_add_rows(table, indices, ones({1, 2}));
  CHECK(table.version() == before + 2);
  gather_rows(table, indices, zeros({1, 2}));
  CHECK(table.version() == before + 2);
}

TEST_CASE("what rows refuse") {
  const Tensor table = zeros({4, 2}), indices = from_vector<int64_t>({1, 3});
  const Tensor rows = zeros({2, 2});
  CHECK_THROWS_WITH_AS(gather_rows(Tensor(), indices, rows),
                       "[gather_rows] table: expected a tensor [V, D], got undefined", Error);
  CHECK_THROWS_WITH_AS(scatter_rows(table, zeros({2}), rows),
                       "[scatter_rows] indices: expected an i64 tensor, got f32 [2]", Error);
  CHECK_THROWS_WITH_AS(scatter_add_rows(table, from_vector<int64_t>({0, 4}), rows),
                       "[scatter_add_rows] indices: expected 0..3, got 4 as element 1", Error);
  CHECK_THROWS_WITH_AS(gather_rows(table, from_vector<int64_t>({-1, 4}), rows),
                       "[gather_rows] indices: expected 0..3, got -1 as element 0", Error);
  CHECK_THROWS_WITH_AS(gather_rows(table, zeros({1, 2}, DType::i64), rows),
                       "[gather_rows] indices: expected one dimension, got i64 [1,2]", Error);
  CHECK_THROWS_WITH_AS(gather_rows(table, indices, zeros({3, 2})),
                       "[gather_rows] out: expected f32 [2,2], got f32 [3,2]", Error);
  CHECK_THROWS_WITH_AS(scatter_rows(table, indices, zeros({2, 2}, DType::bf16)),
                       "[scatter_rows] rows: expected f32 [2,2], got bf16 [2,2]", Error);
  CHECK_THROWS_WITH_AS(scatter_rows(table, indices, raw::slice(table, 0, 1, 3)),
                       "[scatter_rows] rows: expected memory of its own, got the table's", Error);
  CHECK_THROWS_AS(scatter_rows(raw::expand(zeros({1, 2}), {4, 2}), indices, rows), Error);
  CHECK_THROWS_WITH_AS(
      scatter_add_rows(zeros({4, 2}, DType::i64), indices, zeros({2, 2}, DType::i64)),
      "[scatter_add_rows] table: expected a floating dtype, got i64", Error);
  const Tensor own = zeros({2, 2}, DType::i64);
  CHECK_THROWS_AS(scatter_rows(own, raw::select(own, 0, 1), zeros({2, 2}, DType::i64)), Error);
}

TEST_CASE("ops tell which argument is row-sparse") {
  const Tensor s = sparse_rows(arange(2), ones({2, 4}), 8), d = ones({8, 4});
  const auto refused = [](const auto& op, const std::string& argument) {
    CHECK_THROWS_WITH_AS(op(),
                         (argument + ": expected a dense tensor, got f32 [8,4] row-sparse, 2 rows; "
                                     "to_dense() makes it one")
                             .c_str(),
                         Error);
  };
  refused([&] { return s + d; }, "[add] a");
  refused([&] { return d * s; }, "[mul] b");
  refused([&] { return sum(s); }, "[sum] x");
  refused([&] { return matmul(s, ones({4, 2})); }, "[matmul] a");
  refused([&] { return matmul(ones({2, 8}), s); }, "[matmul] b");
  refused([&] { return linear(d, s); }, "[linear] weight");
  refused([&] { return softmax(s, 1); }, "[softmax] x");
  refused([&] { return to(s, DType::f64); }, "[to] x");
  refused([&] { return cat({d, s}, 0); }, "[cat] tensor 1");
  refused([&] { return reshape(s, {32}); }, "[reshape] tensor");
  refused([&] { return embedding(arange(2), s); }, "[embedding] weight");
  refused([&] { return layer_norm(s, {4}); }, "[layer_norm] x");
  refused([&] { return mse_loss(d, s); }, "[mse_loss] target");
  refused([&] { gather_rows(s, arange(2), ones({2, 4})); }, "[gather_rows] table");
}

namespace {

/// The two numbers beside x, the smaller one in size first; the same twice where it is one of them.
std::pair<double, double> neighbours(float x, DType dtype) {
  const double size = std::abs(static_cast<double>(x));
  const int digits = dtype == DType::bf16 ? 8 : 11, least = dtype == DType::bf16 ? -126 : -14;
  const double spacing =
      std::ldexp(1, std::max(size > 0 ? std::ilogb(size) : least, least) + 1 - digits);
  const double below = std::floor(size / spacing) * spacing;
  return {std::copysign(below, x), std::copysign(below == size ? below : below + spacing, x)};
}

/// What the chance to be rounded away from zero is a whole multiple of.
double chance_step(float x, DType dtype) {
  return dtype == DType::bf16 ? 0x1p-16 : std::abs(x) >= 0x1p-14f ? 0x1p-13 : 0x1p-32;
}

}  // namespace

TEST_CASE("rows that are rounded by chance are right on average, and among neighbours") {
  constexpr int64_t kDraws = 40'000;
  const Threads kept;
  for (const auto& [dtype, x] :
       {std::pair(DType::bf16, 1.0f), {DType::bf16, 1.001f},  {DType::bf16, -1.001f},
        {DType::bf16, 3.14159f},      {DType::bf16, 1e-3f},   {DType::bf16, 0.0f},
        {DType::bf16, 1.00390625f},   {DType::bf16, -250.3f}, {DType::f16, 1.0f},
        {DType::f16, 1.0001f},        {DType::f16, -1.0001f}, {DType::f16, 3.14159f},
        {DType::f16, 65503.0f},       {DType::f16, 0.0f},     {DType::f16, 0x1.ffcp-1f},
        {DType::f16, 0x1.ffep-1f},    {DType::f16, 0x1p-14f}, {DType::f16, 6.1e-5f},
        {DType::f16, 0x1.ffep-15f},   {DType::f16, -1e-6f},   {DType::f16, 0x1p-24f},
        {DType::f16, 4e-8f},          {DType::f16, -1e-8f}}) {
    CAPTURE(dtype);
    CAPTURE(x);
    const Tensor rows = full({kDraws / 8, 8}, x), table = empty(rows.shape(), dtype);
    Tensor first;
    for (const int threads : {1, 3}) {
      set_num_threads(threads);
      Generator generator(7, 3);
      scatter_rows_by_chance(table, arange(kDraws / 8), rows, generator);
      if (!first.defined()) first = raw::clone(table);
      CHECK(same_bits(table, first));
      CHECK(generator.stream() == 4);
    }
    const auto [below, above] = neighbours(x, dtype);
    double sum = 0, up = 0, strangers = 0;
    for (const double y : table.to_vector<double>()) {
      strangers += y != below && y != above;
      sum += y - below;
      up += y == above && above != below;
    }
    CHECK(strangers == 0);
    // Of draws with chance p, the mean is off by five deviations once in two million times. The
    // words have bits enough to make p exact.
    const double p = above == below ? 0 : (static_cast<double>(x) - below) / (above - below);
    CHECK(std::fmod(p, chance_step(x, dtype)) == 0);
    const double bound = 5 * std::sqrt(p * (1 - p) / kDraws) * std::abs(above - below);
    CHECK(std::abs(sum / kDraws - (static_cast<double>(x) - below)) <= bound);
    CHECK((up > 0) == (p > 0));
  }
}

TEST_CASE("steps too small for bf16 add up where rows are rounded by chance") {
  const Tensor exact = full({16, 64}, 1), by_chance = full({16, 64}, 1, DType::bf16);
  const Tensor to_nearest = full({16, 64}, 1, DType::bf16), rows = arange(16);
  Generator generator(1);
  for (int step = 0; step < 1000; ++step) {
    scatter_rows(to_nearest, rows, raw::to(raw::to(to_nearest, DType::f32) + 0.0005, DType::bf16));
    scatter_rows_by_chance(by_chance, rows, raw::to(by_chance, DType::f32) + 0.0005, generator);
  }
  CHECK(same_bits(to_nearest, full({16, 64}, 1, DType::bf16)));
  // A step's deviation is √(0.0005·(2⁻⁷ - 0.0005)): 0.061 of 1000 of them, √1024 less of the mean.
  const double mean = sum(raw::to(by_chance, DType::f64)).item() / 1024;
  CHECK(std::abs(mean - 1.5) < 5 * 0.061 / 32);
}

TEST_CASE("steps too small for f16 add up where rows are rounded by chance, subnormal ones too") {
  for (const double step : {1e-4, 1e-9}) {
    CAPTURE(step);
    const double spacing = step == 1e-4 ? 0x1p-10 : 0x1p-24, start = 1024 * spacing;
    const Tensor by_chance = full({16, 64}, start, DType::f16), rows = arange(16);
    Generator generator(2);
    for (int i = 0; i < 1000; ++i)
      scatter_rows_by_chance(by_chance, rows, raw::to(by_chance, DType::f32) + step, generator);
    const double mean = sum(raw::to(by_chance, DType::f64)).item() / 1024;
    const double deviation = std::sqrt(1000 * step * (spacing - step));  // of the sum of 1000 steps
    CHECK(std::abs(mean - start - 1000 * step) < 5 * deviation / 32);
  }
}

TEST_CASE("rows rounded by chance: beyond f16's largest number there is infinity") {
  constexpr int64_t kDraws = 40'000;
  const Tensor table = empty({1, kDraws}, DType::f16), at = zeros({1}, DType::i64);
  for (const float x : {65504.0f, 65510.0f, -65528.0f, 65536.0f, -1e30f}) {
    CAPTURE(x);
    Generator generator(3);
    scatter_rows_by_chance(table, at, full({1, kDraws}, x), generator);
    double infinite = 0;
    for (const double y : table.to_vector<double>()) {
      REQUIRE((y == std::copysign(65504, x) || y == std::copysign(INFINITY, x)));
      infinite += std::isinf(y);
    }
    const double p = std::clamp((std::abs(static_cast<double>(x)) - 65504) / 32, 0.0, 1.0);
    CHECK(std::abs(infinite / kDraws - p) <= 5 * std::sqrt(p * (1 - p) / kDraws));
  }
}

TEST_CASE("rows rounded by chance: what is not finite stays, other dtypes are refused") {
  const float inf = INFINITY, nan = std::nanf("");
  const Tensor at = zeros({1}, DType::i64);
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const Tensor table = zeros({1, 4}, dtype);
    scatter_rows_by_chance(table, at, from_vector<float>({inf, -inf, nan, 0}, {1, 4}));
    const auto x = table.to_vector<float>();
    CHECK((x[0] == inf && x[1] == -inf && std::isnan(x[2]) && x[3] == 0));
    CHECK_THROWS_WITH(scatter_rows_by_chance(table, at, zeros({1, 4}, dtype)),
                      doctest::Contains("[scatter_rows_by_chance] rows: expected f32"));
  }
  CHECK_THROWS_WITH(scatter_rows_by_chance(zeros({1, 4}), at, zeros({1, 4})),
                    doctest::Contains("[scatter_rows_by_chance] table: expected bf16 or f16"));
}
