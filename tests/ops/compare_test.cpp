// Comparisons and where: values, dtypes, numbers, formats, gradients, errors.
#include "quern/ops/compare.h"

#include <doctest/doctest.h>

#include "gradcheck_helper.h"
#include "quern/tensor/raw.h"

using namespace quern;
using namespace quern::test;

namespace {

using Bools = std::vector<bool>;
Bools list(const Tensor& t) { return t.to_vector<bool>(); }

}  // namespace

TEST_CASE("comparisons of tensors promote, broadcast and know NaN") {
  const Tensor a = from_vector<double>({1, 2, 3, std::nan("")}),
               b = from_vector<double>({2, 2, 2, std::nan("")});
  CHECK_EQ(list(eq(a, b)), Bools{false, true, false, false});
  CHECK_EQ(list(ne(a, b)), Bools{true, false, true, true});
  CHECK_EQ(list(lt(a, b)), Bools{true, false, false, false});
  CHECK_EQ(list(le(a, b)), Bools{true, true, false, false});
  CHECK_EQ(list(gt(a, b)), Bools{false, false, true, false});
  CHECK_EQ(list(ge(a, b)), Bools{false, true, true, false});
  CHECK_EQ(eq(a, b).dtype(), DType::boolean);
  CHECK_FALSE(eq(a, b).requires_grad());
  const int64_t big = (int64_t{1} << 53) + 1;
  CHECK_EQ(list(gt(from_vector<int64_t>({big}), from_vector<int32_t>({7}))), Bools{true});
  CHECK_EQ(list(eq(from_vector<int64_t>({big}), from_vector<int64_t>({big - 1}))), Bools{false});

  for (const DType dtype : {DType::f32, DType::bf16, DType::f64})
    for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
      const Tensor x = random({2, 3, 4, 5}, 1, dtype, format), y = random({3, 1, 1}, 2, dtype);
      const Tensor got = lt(x, y);
      CHECK(got.is_dense_as(format));
      const auto p = x.to_vector<double>(), q = raw::expand(y, x.shape()).to_vector<double>();
      const Bools holds = list(got), reverse = list(gt(y, strided(x)));
      for (size_t i = 0; i < p.size(); ++i) {
        CHECK_EQ(holds[i], p[i] < q[i]);
        CHECK_EQ(reverse[i], p[i] < q[i]);
      }
    }
}

TEST_CASE("a number is rounded to a floating dtype and exact beside integers") {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64})
    CHECK_EQ(list(eq(full({2}, 0.1, dtype), 0.1)), Bools{true, true});
  const int64_t big = (int64_t{1} << 53) + 1;
  const Tensor i = from_vector<int64_t>({big, INT64_MAX, INT64_MIN, 2});
  CHECK_EQ(list(eq(i, 0x1p53)), Bools{false, false, false, false});
  CHECK_EQ(list(lt(i, 0x1p63)), Bools{true, true, true, true});
  CHECK_EQ(list(eq(i, -0x1p63)), Bools{false, false, true, false});
  CHECK_EQ(list(ge(i, 2.5)), Bools{true, true, false, false});
  CHECK_EQ(list(ne(i, std::nan(""))), Bools{true, true, true, true});
  CHECK_EQ(list(le(from_vector<uint8_t>({0, 200}), -1)), Bools{false, false});
  CHECK_EQ(list(gt(from_vector<int32_t>({1, 3}), 1)), Bools{false, true});
}

TEST_CASE("where chooses, of any dtype and layout") {
  const Tensor condition = gt(random({2, 3, 4, 5}, 1), 0.1);
  const Bools chosen = list(condition);
  for (const DType dtype :
       {DType::boolean, DType::u8, DType::i32, DType::i64, DType::bf16, DType::f32, DType::f64})
    for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
      const Tensor a = raw::to(random({2, 3, 4, 5}, 2, DType::f64, format, 1, 100), dtype),
                   b = raw::to(random({3, 1, 1}, 3, DType::f64, {}, 1, 100), dtype),
                   number = raw::to(full({}, 5), dtype);
      const auto p = a.to_vector<double>(), q = raw::expand(b, a.shape()).to_vector<double>();
      const Tensor mixed = where(condition, a, b);
      CHECK_EQ(mixed.dtype(), dtype);
      CHECK(mixed.is_dense_as(format));
      const auto got = mixed.to_vector<double>(),
                 first = where(condition, number, strided(a)).to_vector<double>(),
                 second = where(condition, a, number).to_vector<double>();
      for (size_t i = 0; i < p.size(); ++i) {
        CHECK_EQ(got[i], chosen[i] ? p[i] : q[i]);
        CHECK_EQ(first[i], chosen[i] ? number.to_vector<double>()[0] : p[i]);
        CHECK_EQ(second[i], chosen[i] ? p[i] : number.to_vector<double>()[0]);
      }
    }
  CHECK_EQ(where(condition, zeros({}, DType::i64), zeros({}, DType::bf16)).dtype(), DType::bf16);
  CHECK_EQ(where(zeros({0, 3}, DType::boolean), zeros({3}), ones({})).shape(), Shape{0, 3});
  CHECK_EQ(where(ones({4, 1}, DType::boolean), ones({}), zeros({3})).shape(), Shape{4, 3});
}

TEST_CASE("the gradient goes where the value came from; nothing that was not chosen counts") {
  const Tensor condition = gt(random({3, 4}, 1), 0);
  check_gradients([&](const Tensors& t) { return where(condition, t[0], t[1]); },
                  {leaf({3, 4}, 2), leaf({4}, 3)});
  check_gradients([&](const Tensors& t) { return where(condition, t[0], t[1]); },
                  {leaf({}, 2), leaf({3, 1}, 3).detach()});
  Tensor x = from_vector<float>({1, INFINITY}).requires_grad_();
  where(lt(x, 5), x, zeros({})).backward(from_vector<float>({2, NAN}));
  CHECK_EQ(x.grad().to_vector<double>(), std::vector<double>{2, 0});
}

TEST_CASE("errors of comparisons and where") {
  const Tensor x = zeros({2, 3}), truth = zeros({2, 3}, DType::boolean);
  CHECK_THROWS_WITH_AS(eq(x, Tensor()), "[eq] b: expected a defined tensor, got undefined", Error);
  CHECK_THROWS_WITH_AS(lt(Tensor(), 1), "[lt] a: expected a defined tensor, got undefined", Error);
  CHECK_THROWS_AS(ge(x, zeros({4})), Error);
  CHECK_THROWS_WITH_AS(eq(truth, truth), "[eq] dtype: expected a numeric dtype, got bool", Error);
  CHECK_THROWS_WITH_AS(where(x, x, x), "[where] condition: expected a bool tensor, got f32 [2,3]",
                       Error);
  CHECK_THROWS_WITH_AS(where(truth, x, Tensor()),
                       "[where] b: expected a defined tensor, got undefined", Error);
  CHECK_THROWS_AS(where(truth, zeros({4}), x), Error);
}
