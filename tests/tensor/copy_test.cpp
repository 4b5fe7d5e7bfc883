// copy_ and what is built on it, held to a walk over single elements.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "emulated_cpu.h"
#include "quern/tensor/cpu_features.h"
#include "quern/tensor/parallel.h"
#include "quern/tensor/random.h"
#include "quern/tensor/raw.h"

using namespace quern;

namespace {

constexpr DType kDTypes[] = {DType::boolean, DType::u8,   DType::i32, DType::i64,
                             DType::f16,     DType::bf16, DType::f32, DType::f64};

/// Calls f(dst element, src element), as offsets from the first, for each index of shape.
template <class F>
void walk(const Shape& shape, const Strides& dst, const Strides& src, F f, int d = 0,
          int64_t at_dst = 0, int64_t at_src = 0) {
  if (d == shape.size()) return f(at_dst, at_src);
  for (int64_t i = 0; i < shape[d]; ++i)
    walk(shape, dst, src, f, d + 1, at_dst + i * dst[d], at_src + i * src[d]);
}

/// What the conversion of one element must give.
template <class To, class From>
To converted(From value) {
  if constexpr (std::is_same_v<To, bool>) return static_cast<double>(value) != 0;
  else if constexpr (sizeof(To) == 2) return To(static_cast<float>(value));
  else return static_cast<To>(value);
}

/// The bytes of dst's storage after an element-wise copy, dst's own bytes where it has no element.
std::vector<std::byte> expected_bytes(const Tensor& dst, const Tensor& src) {
  const std::byte* start = dst.storage()->data();
  std::vector<std::byte> bytes(start, start + dst.storage()->bytes());
  visit_dtype(dst.dtype(), [&]<class To>(std::type_identity<To>) {
    visit_dtype(src.dtype(), [&]<class From>(std::type_identity<From>) {
      To* to = reinterpret_cast<To*>(bytes.data()) + dst.offset();
      const From* from = src.data<From>();
      walk(dst.shape(), dst.strides(), raw::expand(src, dst.shape()).strides(),
           [&](int64_t i, int64_t j) { to[i] = converted<To>(from[j]); });
    });
  });
  return bytes;
}

void check_copy(const Tensor& dst, const Tensor& src) {
  CAPTURE(dst.describe());
  CAPTURE(src.describe());
  const std::vector<std::byte> expected = expected_bytes(dst, src);
  const uint64_t version = dst.version();
  raw::copy_(dst, src);
  CHECK(dst.version() == version + 1);
  const std::byte* start = dst.storage()->data();
  CHECK(std::equal(expected.begin(), expected.end(), start));
}

/// Small numbers that every dtype holds, 0 and 1 among them.
Tensor numbers(const Shape& shape, DType dtype, MemoryFormat format = MemoryFormat::contiguous) {
  return raw::contiguous(raw::to(randint(0, 100, shape), dtype), format);
}

}  // namespace

TEST_CASE("copy_: any dtype to any other, dense, strided and transposed") {
  for (DType from : kDTypes) {
    for (DType to : kDTypes) {
      check_copy(numbers({777}, to), numbers({777}, from));
      check_copy(raw::slice(numbers({700}, to), 0, 0, 700, 2),
                 raw::slice(numbers({1050}, from), 0, 0, 1050, 3));
      check_copy(numbers({35, 41}, to), raw::transpose(numbers({41, 35}, from), 0, 1));
      check_copy(numbers({6, 41}, to), numbers({1, 41}, from));
      check_copy(numbers({41, 6}, to), numbers({41, 1}, from));
    }
  }
}

TEST_CASE("copy_: between formats, around the sizes of tiles and cells") {
  for (const Shape& shape :
       {Shape{2, 3, 5, 7}, Shape{1, 64, 8, 8}, Shape{3, 65, 31, 33}, Shape{2, 33, 1, 1},
        Shape{2, 1, 9, 9}, Shape{1, 3, 224, 224}, Shape{1, 2048, 7, 7}, Shape{1, 9, 1, 40'000},
        Shape{2, 8, 32, 32}, Shape{20, 9, 3, 3}, Shape{3, 40, 2, 2}, Shape{2, 2, 40, 50},
        Shape{4, 7, 13, 10}, Shape{3, 3, 2, 2}, Shape{1, 3, 1, 5}}) {
    for (auto [to, from] : {std::pair{DType::f32, DType::f32}, std::pair{DType::bf16, DType::f32},
                            std::pair{DType::f32, DType::bf16}, std::pair{DType::f16, DType::f32},
                            std::pair{DType::f32, DType::f16}, std::pair{DType::f16, DType::bf16},
                            std::pair{DType::u8, DType::u8}, std::pair{DType::f64, DType::f64}}) {
      const Tensor nchw = numbers(shape, from);
      const Tensor nhwc = numbers(shape, from, MemoryFormat::channels_last);
      check_copy(empty(shape, to, MemoryFormat::channels_last), nchw);
      check_copy(empty(shape, to), nhwc);
    }
  }
}

TEST_CASE("copy_: between formats, and nothing beside it") {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const int64_t channels : {2, 3, 5, 9})
      for (const int64_t width : {3, 7, 64, 577}) {
        const Tensor all = full({3, channels, 3, width}, 7, dtype, MemoryFormat::channels_last);
        check_copy(raw::slice(all, 0, 1, 2), numbers({1, channels, 3, width}, dtype));
      }
}

TEST_CASE("copy_: between formats, of more than the caches hold" *
          doctest::skip(test::kEmulatedCpu)) {
  for (auto [to, from] : {std::pair{DType::f32, DType::f32}, std::pair{DType::bf16, DType::f32}}) {
    const int64_t image = 48 * 64 * 33 * itemsize(to);
    const Shape shape{cache_sizes().l3 / 2 / image + 1, 48, 64, 33};
    check_copy(empty(shape, to, MemoryFormat::channels_last), numbers(shape, from));
    check_copy(empty(shape, to), numbers(shape, from, MemoryFormat::channels_last));
    // Images an element more apart, so that few begin with a cache line.
    const int64_t items = 48 * 64 * 33;
    const Tensor apart = empty({shape[0] * (items + 1)}, to);
    check_copy(raw::as_strided(apart, shape, {items + 1, 1, 33 * 48, 48}, 0), numbers(shape, from));
  }
}

TEST_CASE("copy_: slices, permutations and broadcasts of up to eight dimensions") {
  const Tensor src = numbers({3, 4, 5, 6, 7}, DType::f32);
  check_copy(empty({3, 4, 5, 6, 7}), src);
  check_copy(empty({7, 5, 3, 6, 4}), raw::permute(src, {4, 2, 0, 3, 1}));
  check_copy(raw::permute(empty({7, 5, 3, 6, 4}), {2, 4, 1, 3, 0}), src);
  check_copy(raw::slice(zeros({3, 4, 9, 6, 7}), 2, 2, 7), src);
  check_copy(raw::slice(zeros({3, 4, 5, 6, 20}), 4, 3, 17, 2), src);
  check_copy(raw::slice(raw::permute(zeros({7, 6, 5, 4, 5}), {4, 3, 2, 1, 0}), 0, 1, 4), src);
  check_copy(empty({2, 3, 4, 5, 6, 7}), raw::slice(src, 1, 2, 3));
  check_copy(empty({100, 1000}), numbers({}, DType::f32));
  check_copy(empty({2, 2, 2, 2, 2, 2, 2, 2}),
             raw::permute(numbers({2, 2, 2, 2, 2, 2, 2, 2}, DType::f32), {7, 6, 5, 4, 3, 2, 1, 0}));
  check_copy(empty({}), numbers({}, DType::i32));
  check_copy(empty({3, 0}), zeros({1, 0}));
  check_copy(empty({300, 400}), raw::slice(numbers({300, 900}, DType::f32), 1, 1, 801, 2));
}

TEST_CASE("copy_: values repeated in short runs, and nothing behind them") {
  for (const DType dtype : {DType::u8, DType::bf16, DType::f32, DType::f64})
    for (const int64_t run : {2, 3, 4, 5, 8, 15, 16, 17, 33, 300})
      for (const int64_t values : {1, 2, 3, 20, 9001}) {
        const Tensor longer = numbers({values * run + 40}, dtype);
        const Tensor dst = raw::as_strided(longer, {values, run}, {run, 1}, 0);
        check_copy(dst, numbers({values, 1}, dtype));
        check_copy(dst, raw::slice(numbers({values, 2}, dtype), 1, 1, 2));
      }
}

TEST_CASE("copy_: random views agree with the walk") {
  Generator generator(11);
  for (int round = 0; round < 200; ++round) {
    const auto draw = [&](int64_t n) {
      float u = 0;
      fill_uniform(&u, 1, generator.seed(), generator.next_stream());
      return static_cast<int64_t>(u * static_cast<float>(n));
    };
    // A tensor of random sizes, its dimensions in random order, some of them sliced: to one of
    // each.
    const int rank = 1 + static_cast<int>(draw(4));
    Shape shape;
    for (int d = 0; d < rank; ++d) shape.push_back(1 + draw(40 / rank));
    const auto view = [&](DType dtype) {
      Shape larger = shape;
      Dims order, back = shape;
      for (int d = 0; d < rank; ++d) {
        larger[d] = shape[d] * (1 + draw(2)) + draw(2);
        order.insert(static_cast<int>(draw(d + 1)), d);
      }
      Shape stored = larger;
      for (int d = 0; d < rank; ++d) stored[d] = larger[static_cast<int>(order[d])];
      for (int d = 0; d < rank; ++d) back[static_cast<int>(order[d])] = d;
      Tensor t = raw::permute(numbers(stored, dtype), back);
      for (int d = 0; d < rank; ++d) {
        const int64_t step = larger[d] / shape[d];
        t = raw::slice(t, d, 0, shape[d] * step, step);
      }
      return t;
    };
    const Tensor dst = view(kDTypes[draw(8)]);
    check_copy(dst, view(draw(2) == 0 ? dst.dtype() : kDTypes[draw(8)]));
  }
}

TEST_CASE("copy_: floats become integers towards zero, within the integer's range") {
  const double inf = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Tensor t = from_vector<double>({-0.9, 0.9, -1.9, 255.9, 256, 1e30, -1e30, inf, -inf, nan});
  CHECK(t.to_vector<uint8_t>() == std::vector<uint8_t>{0, 0, 0, 255, 255, 255, 0, 255, 0, 0});
  const int64_t low = INT64_MIN, high = INT64_MAX;
  CHECK(t.to_vector<int64_t>() ==
        std::vector<int64_t>{0, 0, -1, 255, 256, high, low, high, low, 0});
  CHECK(from_vector<double>({2147483647.5, -2147483648.5, 2147483648.0}).to_vector<int32_t>() ==
        std::vector<int32_t>{INT32_MAX, INT32_MIN, INT32_MAX});
  CHECK(from_vector<double>({0.5, -0.0, nan, 256}).to_vector<bool>() ==
        std::vector<bool>{true, false, true, true});
}

TEST_CASE("copy_: integers keep every bit that fits") {
  const int64_t big = (int64_t{1} << 53) + 1;  // no double
  CHECK((from_vector<int64_t>({big, -1, int64_t{1} << 31})).to_vector<int32_t>() ==
        std::vector<int32_t>{1, -1, INT32_MIN});
  CHECK(from_vector<int32_t>({256, 257, -1}).to_vector<uint8_t>() ==
        std::vector<uint8_t>{0, 1, 255});
  CHECK((from_vector<int64_t>({int64_t{1} << 40, 0})).to_vector<bool>() ==
        std::vector<bool>{true, false});
  CHECK(raw::clone(from_vector<int64_t>({big})).to_vector<int64_t>() == std::vector<int64_t>{big});
}

TEST_CASE("copy_: every bf16 through f32 and f64, as bits") {
  std::vector<bfloat16> all;
  for (uint32_t bits = 0; bits < 0x10000; ++bits)
    all.push_back(bfloat16::from_bits(static_cast<uint16_t>(bits)));
  const Tensor t = from_vector(all);
  const std::vector<float> wide = t.to_vector<float>();
  const std::vector<bfloat16> back = raw::to(t, DType::f32).to_vector<bfloat16>();
  const std::vector<bfloat16> through_f64 = raw::to(t, DType::f64).to_vector<bfloat16>();
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const bool nan = (bits & 0x7fff) > 0x7f80, denormal = (bits & 0x7f80) == 0;
    REQUIRE(std::bit_cast<uint32_t>(wide[bits]) == bits << 16);
    REQUIRE(back[bits].bits == (nan ? bits | 0x40 : bits));
    // Arithmetic conversions flush denormals (see parallel_for); bits cut or appended do not.
    REQUIRE(through_f64[bits].bits == (nan ? bits | 0x40 : denormal ? bits & 0x8000 : bits));
  }
}

TEST_CASE("copy_: every kind of f32 to bf16, the bits of one by one") {
  const Tensor x = empty({1 << 16, 7}), y = empty(x.shape(), DType::bf16);
  constexpr uint32_t kLower[] = {0, 1, 0x1234, 0x7fff, 0x8000, 0x8001, 0xffff};
  for (uint32_t upper = 0; upper < 1 << 16; ++upper)
    for (uint32_t k = 0; k < 7; ++k)
      x.out<float>()[upper * 7 + k] = std::bit_cast<float>(upper << 16 | kLower[k]);
  raw::copy_(y, x);
  int64_t wrong = 0;
  for (int64_t i = 0; i < x.numel(); ++i)
    wrong += y.data<bfloat16>()[i].bits != bfloat16(x.data<float>()[i]).bits;
  CHECK(wrong == 0);
}

TEST_CASE("copy_: a source that overlaps the destination is read first") {
  Tensor t = arange(10, DType::f32);
  raw::copy_(raw::slice(t, 0, 1, 10), raw::slice(t, 0, 0, 9));
  CHECK(t.to_vector<float>() == std::vector<float>{0, 0, 1, 2, 3, 4, 5, 6, 7, 8});
  Tensor square = raw::reshape(arange(9), {3, 3});
  raw::copy_(square, raw::transpose(square, 0, 1));
  CHECK(square.to_vector<int64_t>() == std::vector<int64_t>{0, 3, 6, 1, 4, 7, 2, 5, 8});
  Tensor halves = arange(8);
  raw::copy_(raw::slice(halves, 0, 0, 4), raw::slice(halves, 0, 4, 8));
  CHECK(halves.to_vector<int64_t>() == std::vector<int64_t>{4, 5, 6, 7, 4, 5, 6, 7});
}

TEST_CASE("copy_: errors change nothing") {
  const Tensor t = zeros({2, 3});
  const uint64_t version = t.version();
  CHECK_THROWS_WITH_AS(
      raw::copy_(t, zeros({2, 4})),
      "[copy_] shapes: expected equal sizes or 1 in each dimension from the last, got "
      "[2,3] and [2,4]",
      Error);
  CHECK_THROWS_WITH_AS(
      raw::copy_(t, zeros({2, 2, 3})),
      "[copy_] src: expected a shape that broadcasts to f32 [2,3], got f32 [2,2,3]", Error);
  CHECK_THROWS_AS(raw::copy_(zeros({1, 3}), t), Error);
  CHECK_THROWS_WITH_AS(raw::copy_(raw::expand(zeros({3}), {2, 3}), t),
                       "[copy_] dst: expected no expanded dimension, got f32 [2,3] strides [0,1]",
                       Error);
  CHECK_THROWS_AS(raw::copy_(Tensor(), t), Error);
  CHECK_THROWS_AS(raw::copy_(t, Tensor()), Error);
  CHECK_THROWS_AS(raw::fill_(Tensor(), 1), Error);
  CHECK_THROWS_AS(raw::fill_(raw::expand(zeros({3}), {2, 3}), 1), Error);
  CHECK(t.version() == version);
}

TEST_CASE("copy_ and fill_: not to windows that overlap, but to any others") {
  const Tensor t = zeros({10});
  const Tensor windows = raw::as_strided(t, {4, 3}, {2, 1}, 0);
  const uint64_t before = t.version();
  CHECK_THROWS_WITH_AS(
      raw::copy_(windows, ones({4, 3})),
      "[copy_] dst: expected elements that do not overlap, got f32 [4,3] strides [2,1]", Error);
  CHECK_THROWS_AS(raw::fill_(windows, 1), Error);
  CHECK(t.version() == before);
  const Tensor interleaved = raw::as_strided(t, {2, 2}, {3, 2}, 0);  // places 0, 2, 3 and 5
  raw::copy_(interleaved, ones({2, 2}));
  CHECK(t.to_vector<double>() == std::vector<double>{1, 0, 1, 1, 0, 1, 0, 0, 0, 0});
}

TEST_CASE("fill_: every dtype, whatever the strides") {
  for (DType dtype : kDTypes) {
    const Tensor t = zeros({40, 50}, dtype);
    const Tensor inner = raw::slice(raw::transpose(t, 0, 1), 0, 1, 50, 2);
    const uint64_t version = t.version();
    raw::fill_(inner, 1);
    CHECK(t.version() == version + 1);
    CHECK(inner.to_vector<double>() == std::vector<double>(1000, 1));
    double sum = 0;
    for (double value : t.to_vector<double>()) sum += value;
    CHECK(sum == 1000);
  }
  CHECK(full({100'000}, -1.5).to_vector<float>()[99'999] == -1.5f);
  raw::fill_(zeros({0}), 1);
}

TEST_CASE("clone, contiguous and to") {
  const Tensor t = numbers({2, 3, 4, 5}, DType::f32, MemoryFormat::channels_last);
  const Tensor c = raw::clone(t);
  CHECK(c.strides() == t.strides());
  CHECK(c.storage() != t.storage());
  CHECK(c.to_vector<float>() == t.to_vector<float>());
  CHECK(raw::contiguous(t, MemoryFormat::channels_last).is_same(t));
  CHECK(raw::contiguous(t).is_dense_as(MemoryFormat::contiguous));
  CHECK(raw::to(t, DType::f32).is_same(t));
  CHECK(raw::to(t, DType::bf16).format() == MemoryFormat::channels_last);
  CHECK(raw::clone(raw::slice(t, 1, 0, 2)).is_dense_as(MemoryFormat::contiguous));
  CHECK_THROWS_AS(raw::contiguous(zeros({2, 2}), MemoryFormat::channels_last), Error);
  CHECK_THROWS_AS(raw::clone(Tensor()), Error);
  CHECK_THROWS_AS(raw::contiguous(Tensor()), Error);
  CHECK_THROWS_AS(raw::to(Tensor(), DType::f32), Error);
}
