#include "quern/ops/rows.h"

#include "gradcheck_helper.h"
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
  for (const DType dtype : {DType::bf16, DType::f32, DType::f64})
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
        // At most three terms of at most 1 each; bf16 is rounded once.
        const double bound = dtype == DType::bf16  ? 3 * 0x1p-9
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
      "[scatter_add_rows] table: expected bf16, f32 or f64, got i64", Error);
  const Tensor own = zeros({2, 2}, DType::i64);
  CHECK_THROWS_AS(scatter_rows(own, raw::select(own, 0, 1), zeros({2, 2}, DType::i64)), Error);
}
