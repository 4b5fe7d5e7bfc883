// Every elementwise function, and what works in place, on operands of any layout: the bits of dense
// operands.
#include <doctest/doctest.h>

#include "ops/hostile.h"
#include "quern/ops/binary.h"
#include "quern/ops/detail/elementwise.h"

namespace quern::test {
namespace {

using kernels::Binary, kernels::Unary;

constexpr DType kFloating[] = {DType::f64, DType::f32, DType::bf16};
const Shape kShapes[] = {{}, {0, 3}, {5}, {3, 1, 4}, {40, 70}, {2, 5, 3, 4}, {1, 1, 1, 1}};

Tensor dense(const Tensor& t) { return raw::clone(raw::contiguous(t)); }

/// In 0.1...0.9, where all functions have numbers.
Tensor values(const Shape& shape, uint64_t seed, DType dtype) {
  return random(shape, seed, dtype, MemoryFormat::contiguous, 0.1, 0.9);
}

/// f(view, what to say of it) on the layouts of t.
template <class F>
void each_layout(const Tensor& t, F f) {
  for (const Layout& layout : layouts())
    if (const Tensor view = layout.make(t); view.defined()) {
      INFO(layout.name, " ", view.describe());
      f(view);
    }
}

void check_unary(const char* name, Unary f) {
  INFO(std::string(name));
  for (const DType dtype : kFloating)
    for (const Shape& shape : kShapes)
      each_layout(values(shape, 1, dtype), [&](const Tensor& x) {
        CHECK(same_bits(raw::unary(name, f, x, 0.3, 0.6), raw::unary(name, f, dense(x), 0.3, 0.6)));
      });
}

void check_binary(const char* name, Binary f) {
  INFO(std::string(name));
  for (const DType dtype : kFloating)
    for (const Shape& shape : kShapes) {
      const auto check = [&](const Tensor& a, const Tensor& b) {
        CHECK(same_bits(raw::binary(name, f, a, b, 0.3, 0.6),
                        raw::binary(name, f, dense(a), dense(b), 0.3, 0.6)));
      };
      const Tensor other = values(shape, 2, dtype), one = values({1}, 3, dtype);
      each_layout(values(shape, 1, dtype), [&](const Tensor& a) {
        check(a, other), check(other, a), check(a, a), check(a, one), check(one, a);
        if (a.dim() > 1) check(a, raw::slice(a, 0, 0, std::min<int64_t>(1, a.size(0))));
      });
    }
}

/// Does `change` to a view what it does to a dense tensor of the same values, and nothing around
/// it; or refuses a view whose elements share memory, and leaves it as it is.
void check_in_place(const Tensor& t, const std::function<void(const Tensor&)>& change) {
  each_layout(t, [&](const Tensor& dst) {
    const auto before = memory_of(dst);
    const Tensor original = dense(dst), expected = dense(dst);
    bool refused = false;
    try {
      raw::check_writable("test", dst);
    } catch (const Error&) {
      refused = true;
      CHECK_THROWS_AS(change(dst), Error);
    }
    if (!refused) {
      const uint64_t version = dst.version();
      change(dst), change(expected);
      CHECK(same_bits(dst, expected));
      CHECK(dst.version() > version);
      raw::copy_(dst, original);
    }
    CHECK(memory_of(dst) == before);
  });
}

}  // namespace

TEST_CASE("elementwise functions give the same bits in any layout") {
#define QUERN_UNARY_NUMBER(op) check_unary(#op, Unary::op);
#define QUERN_UNARY_REAL(op) check_unary(#op, Unary::op);
#define QUERN_BINARY_NUMBER(op) check_binary(#op, Binary::op);
#define QUERN_BINARY_REAL(op) check_binary(#op, Binary::op);
#include "quern/ops/kernels/elementwise/ops.inc"
}

TEST_CASE("what works in place does so in any layout") {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64, DType::i64, DType::u8})
    for (const Shape& shape : kShapes) {
      const Tensor t = values(shape, 1, dtype);
      check_in_place(t, [](const Tensor& dst) { raw::fill_(dst, 3); });
      each_layout(values(shape, 2, dtype), [&](const Tensor& src) {
        check_in_place(t, [&](const Tensor& dst) { raw::copy_(dst, src); });
        check_in_place(t, [&](const Tensor& dst) { raw::add_(dst, src); });
        if (is_floating(dtype))
          check_in_place(t, [&](const Tensor& dst) { raw::add_(dst, src, 0.5); });
      });
      if (shape.empty()) continue;
      // Sources that are parts of what is written.
      const auto first = [](const Tensor& dst) {
        return raw::slice(dst, 0, 0, std::min<int64_t>(1, dst.size(0)));
      };
      if (numel(shape) == 0) continue;
      check_in_place(t, [&](const Tensor& dst) { raw::copy_(dst, first(dst)); });
      check_in_place(t, [&](const Tensor& dst) { raw::add_(dst, first(dst)); });
      check_in_place(t, [&](const Tensor& dst) { raw::add_(dst, dst); });
    }
}

}  // namespace quern::test
