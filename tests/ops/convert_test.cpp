// to, contiguous, clone.
#include "quern/ops/convert.h"

#include "gradcheck_helper.h"
#include "quern/ops/autocast.h"

using namespace quern;
using namespace quern::test;

TEST_CASE("to rounds to nearest even and keeps the format") {
  const Tensor x = random({2, 3, 4, 5}, 1, DType::f32, MemoryFormat::channels_last);
  const Tensor y = to(x, DType::bf16);
  CHECK(y.dtype() == DType::bf16);
  CHECK(y.is_dense_as(MemoryFormat::channels_last));
  const auto exact = x.to_vector<float>(), rounded = y.to_vector<float>();
  for (size_t i = 0; i < exact.size(); ++i)
    CHECK(rounded[i] == static_cast<float>(bfloat16(exact[i])));
  CHECK(to(from_vector<float>({-1.9f, 2.5f}), DType::i64).to_vector<int64_t>() ==
        std::vector<int64_t>{-1, 2});
}

TEST_CASE("what needs no change is returned itself") {
  const Tensor x = random({2, 3, 4, 5}, 1);
  CHECK(to(x, DType::f64).is_same(x));
  CHECK(contiguous(x).is_same(x));
  CHECK(!contiguous(x, MemoryFormat::channels_last).is_same(x));
  CHECK(clone(x).storage() != x.storage());
}

TEST_CASE("gradients of conversions") {
  for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
    const Tensor x = leaf({2, 3, 2, 2}, 1, format);
    check_gradients([&](const Tensors& in) { return contiguous(in[0]); }, {x});
    check_gradients(
        [&](const Tensors& in) { return contiguous(in[0], MemoryFormat::channels_last); }, {x});
    check_gradients([&](const Tensors& in) { return clone(in[0]); }, {x});
  }
}

TEST_CASE("the gradient of a cast has the input's dtype") {
  for (const auto& [from, over] : {std::pair(DType::f32, DType::bf16), {DType::bf16, DType::f32}}) {
    const Tensor x = ones({3}, from).requires_grad_();
    const Tensor dy = random({3}, 1, over);
    to(x, over).backward(dy);
    CHECK(x.grad().dtype() == from);
    CHECK(same_bits(x.grad(), raw::to(dy, from)));
  }
}

TEST_CASE("a gradient wider than the cast's output loses nothing on its way back") {
  const Tensor x = ones({3}, DType::f32).requires_grad_();
  const Tensor dy = random({3}, 1, DType::f32);
  to(x, DType::bf16).backward(dy);
  CHECK(same_bits(x.grad(), dy));
}

TEST_CASE("a cast to integers has no gradient") {
  CHECK(!to(ones({3}).requires_grad_(), DType::i64).requires_grad());
}

TEST_CASE("what conversions refuse") {
  CHECK_THROWS_WITH_AS(to(Tensor(), DType::f32), "[to] x: expected a defined tensor, got undefined",
                       Error);
  CHECK_THROWS_WITH_AS(contiguous(Tensor()),
                       "[contiguous] x: expected a defined tensor, got undefined", Error);
  CHECK_THROWS_WITH_AS(contiguous(ones({2, 3}), MemoryFormat::channels_last),
                       "[contiguous] x: expected 4 dimensions for channels_last, got f32 [2,3]",
                       Error);
  CHECK_THROWS_WITH_AS(clone(Tensor()), "[clone] x: expected a defined tensor, got undefined",
                       Error);
}
