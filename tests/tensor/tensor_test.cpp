#include "quern/tensor/tensor.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "quern/tensor/raw.h"

using namespace quern;

TEST_CASE("tensor: factories") {
  CHECK(zeros({2, 2}).to_vector<float>() == std::vector<float>(4, 0));
  CHECK(full({3}, 0.1, DType::f64).to_vector<double>() == std::vector<double>(3, 0.1));
  CHECK(arange(4).to_vector<int64_t>() == std::vector<int64_t>{0, 1, 2, 3});
  CHECK(arange(3, DType::bf16).to_vector<float>() == std::vector<float>{0, 1, 2});
  CHECK(arange(0).numel() == 0);
  CHECK(ones({2}, DType::boolean).to_vector<bool>() == std::vector<bool>{true, true});
  CHECK(full({}, 7).item() == 7);
  const Tensor t = from_vector<int32_t>({1, 2, 3, 4, 5, 6}, {2, 3});
  CHECK(t.dtype() == DType::i32);
  CHECK(raw::select(t, 0, 1).data<int32_t>()[0] == 4);
  CHECK(ones_like(t).to_vector<float>() == std::vector<float>(6, 1));
  CHECK(zeros_like(t).dtype() == DType::i32);

  const Tensor image = empty({2, 3, 4, 5}, DType::bf16, MemoryFormat::channels_last);
  CHECK(image.strides() == Strides{60, 1, 15, 3});
  CHECK(empty_like(image).strides() == image.strides());
  CHECK(empty_like(image, DType::f64).dtype() == DType::f64);
  CHECK(empty_like(raw::transpose(t, 0, 1)).strides() == Strides{2, 1});
}

TEST_CASE("tensor: factories refuse bad shapes before they allocate") {
  const MemoryStats before = memory_stats();
  const int64_t big = int64_t{1} << 40;
  CHECK_THROWS_AS(empty({big, big}), Error);
  CHECK_THROWS_AS(empty({big, 0, big}), Error);
  CHECK_THROWS_AS(zeros({-1}), Error);
  CHECK_THROWS_AS(empty({2, 3}, DType::f32, MemoryFormat::channels_last), Error);
  CHECK_THROWS_WITH_AS(arange(-1), "[arange] end: expected at least 0, got -1", Error);
  CHECK_THROWS_WITH_AS(from_vector<float>({1, 2}, {3}),
                       "[from_span] values: expected 3 for shape [3], got 2", Error);
  CHECK(memory_stats().system_allocations == before.system_allocations);
  CHECK(memory_stats().in_use == before.in_use);
}

TEST_CASE("tensor: a view must lie within its storage") {
  const auto storage = std::make_shared<Storage>(24 * sizeof(float));
  const auto make = [&](Shape shape, Strides strides, int64_t offset) {
    return Tensor(storage, shape, strides, offset, DType::f32);
  };
  const int64_t max = std::numeric_limits<int64_t>::max();
  CHECK(make({4, 6}, {6, 1}, 0).numel() == 24);
  CHECK(make({2, 2}, {20, 1}, 2).numel() == 4);  // the last element is the storage's last
  CHECK(make({0, 9}, {9, 1}, 24).numel() == 0);
  CHECK(make({1000, 24}, {0, 1}, 0).numel() == 24'000);
  CHECK_THROWS_WITH_AS(make({2, 2}, {20, 1}, 3),
                       "[tensor] strides: expected a view within 24 elements, got shape [2,2], "
                       "strides [20,1], offset 3",
                       Error);
  CHECK_THROWS_AS(make({1}, {1}, 24), Error);
  CHECK_THROWS_AS(make({1}, {1}, -1), Error);
  CHECK_THROWS_AS(make({1}, {1}, max), Error);
  CHECK_THROWS_AS(make({0}, {1}, 25), Error);
  CHECK_THROWS_AS(make({3}, {max}, 0), Error);
  CHECK_THROWS_AS(make({3, 3}, {max / 2, max / 2}, 0), Error);
  CHECK_THROWS_AS(make({2}, {-1}, 1), Error);
  CHECK_THROWS_AS(make({2, 2}, {1}, 0), Error);
  CHECK_THROWS_AS(Tensor(nullptr, {1}, {1}, 0, DType::f32), Error);
  CHECK_THROWS_AS(Tensor(storage, {13}, {1}, 0, DType::f64), Error);
}

TEST_CASE("tensor: memory formats") {
  const Tensor nchw = empty({2, 3, 4, 5});
  const Tensor nhwc = empty({2, 3, 4, 5}, DType::f32, MemoryFormat::channels_last);
  CHECK(nchw.is_dense_as(MemoryFormat::contiguous));
  CHECK_FALSE(nchw.is_dense_as(MemoryFormat::channels_last));
  CHECK_FALSE(nhwc.is_dense_as(MemoryFormat::contiguous));
  CHECK(nhwc.is_dense_as(MemoryFormat::channels_last));
  CHECK(nchw.format() == MemoryFormat::contiguous);
  CHECK(nhwc.format() == MemoryFormat::channels_last);

  // Both at once: one channel, or one pixel, whatever the strides of the dimensions of size 1.
  for (const Shape& shape : {Shape{4, 1, 5, 6}, Shape{4, 7, 1, 1}, Shape{0, 3, 4, 5}}) {
    const Tensor both = empty(shape, DType::f32, MemoryFormat::channels_last);
    CHECK(both.is_dense_as(MemoryFormat::contiguous));
    CHECK(both.is_dense_as(MemoryFormat::channels_last));
    CHECK(both.format() == MemoryFormat::contiguous);
  }
  const Tensor odd = Tensor(nchw.storage(), {1, 3, 1, 5}, {999, 5, 77, 1}, 0, DType::f32);
  CHECK(odd.is_dense_as(MemoryFormat::contiguous));
  CHECK_FALSE(raw::slice(nchw, 3, 0, 4).is_dense_as(MemoryFormat::contiguous));
  CHECK_FALSE(raw::slice(nhwc, 1, 0, 2).is_dense_as(MemoryFormat::channels_last));
  CHECK_FALSE(empty({2, 3}).is_dense_as(MemoryFormat::channels_last));
  CHECK(empty({}).is_dense_as(MemoryFormat::contiguous));
}

TEST_CASE("tensor: access") {
  Tensor t = from_vector<float>({0, 1, 2, 3, 4, 5}, {2, 3});
  CHECK(t.size(-1) == 3);
  CHECK(t.stride(0) == 3);
  CHECK(t.nbytes() == 24);
  CHECK_THROWS_WITH_AS(t.size(2), "[size] dim: expected -2..1, got 2", Error);
  CHECK_THROWS_WITH_AS(t.data<double>(), "[data] dtype: expected f64, got f32", Error);
  CHECK_THROWS_WITH_AS(t.item(), "[item] tensor: expected one element, got f32 [2,3]", Error);
  CHECK(raw::select(raw::select(t, 0, 1), 0, 2).item<int>() == 5);
  CHECK(full({1}, 2.5, DType::bf16).item<float>() == 2.5f);
  CHECK(full({1, 1}, 1, DType::boolean).item() == 1);
  CHECK_FALSE(Tensor().defined());
  CHECK_THROWS_AS(Tensor().item(), Error);
  const char* undefined = "[tensor] tensor: expected a defined tensor, got undefined";
  CHECK_THROWS_WITH_AS(Tensor().shape(), undefined, Error);
  CHECK_THROWS_WITH_AS(Tensor().size(0), undefined, Error);
  CHECK_THROWS_WITH_AS(Tensor().dtype(), undefined, Error);
  CHECK_THROWS_WITH_AS(Tensor().data_ptr(), undefined, Error);
}

TEST_CASE("tensor: an item is exact, or an error") {
  const int64_t big = (int64_t{1} << 53) + 1;
  CHECK(from_vector<int64_t>({big}).item<int64_t>() == big);
  CHECK(from_vector<int64_t>({INT64_MIN}).item<int64_t>() == INT64_MIN);
  CHECK(from_vector<int64_t>({INT64_MAX}).item<uint64_t>() == uint64_t{INT64_MAX});
  CHECK(full({}, -2.75).item<int>() == -2);
  CHECK(full({}, -0x1p63).item<int64_t>() == INT64_MIN);
  CHECK(full({}, 200, DType::u8).item<int64_t>() == 200);
  CHECK(full({}, 0.5).item<bool>());
  CHECK(full({}, 1, DType::boolean).item<uint8_t>() == 1);
  for (const double value : {1e300, -1e300, 0x1p63, double{NAN}, double{INFINITY}})
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
      CHECK_THROWS_AS(full({}, value, dtype).item<int64_t>(), Error);
  CHECK_THROWS_WITH_AS(full({}, -1, DType::i64).item<uint8_t>(),
                       "[item] tensor: expected a number within 0..255, got -1", Error);
  CHECK_THROWS_WITH_AS(full({}, NAN).item<int>(),
                       "[item] tensor: expected a number within -2147483648..2147483647, got nan",
                       Error);
}

TEST_CASE("tensor: to_vector") {
  const Tensor t = from_vector<float>({0, 1, 2, 3, 4, 5}, {2, 3});
  CHECK(raw::transpose(t, 0, 1).to_vector<int64_t>() == std::vector<int64_t>{0, 3, 1, 4, 2, 5});
  CHECK(raw::expand(raw::slice(t, 1, 1, 2), {2, 2}).to_vector<double>() ==
        std::vector<double>{1, 1, 4, 4});
  const Tensor image = raw::contiguous(raw::reshape(arange(8, DType::bf16), {1, 2, 2, 2}),
                                       MemoryFormat::channels_last);
  CHECK(image.to_vector<uint8_t>() == std::vector<uint8_t>{0, 1, 2, 3, 4, 5, 6, 7});
  CHECK(t.to_vector<bool>() == std::vector<bool>{false, true, true, true, true, true});
  CHECK(full({}, 2.5).to_vector<float>() == std::vector<float>{2.5f});
  CHECK(empty({2, 0}).to_vector<float>().empty());
  CHECK_THROWS_WITH_AS(Tensor().to_vector<float>(),
                       "[to_vector] tensor: expected a defined tensor, got undefined", Error);
}

TEST_CASE("tensor: describe, and messages") {
  CHECK(Tensor().describe() == "undefined");
  CHECK(empty({2, 3}).describe() == "f32 [2,3]");
  CHECK(empty({2, 3, 4, 4}, DType::bf16, MemoryFormat::channels_last).describe() ==
        "bf16 [2,3,4,4] channels_last");
  CHECK(raw::transpose(empty({2, 3}), 0, 1).describe() == "f32 [3,2] strides [1,3]");
  CHECK_THROWS_WITH_AS(check(false, "op", "{} and {}", empty({2, 3}), Tensor()),
                       "[op] f32 [2,3] and undefined", Error);
}

TEST_CASE("reading leaves a tensor's version alone, writing moves it on") {
  const Tensor t = ones({2});
  static_assert(std::is_same_v<decltype(t.data<float>()), const float*>);
  static_assert(std::is_same_v<decltype(t.data_ptr()), const void*>);
  const uint64_t version = t.version();
  CHECK(t.data<float>()[1] == 1);
  CHECK(t.version() == version);
  CHECK_FALSE(t.exposed());
  t.mutable_data<float>()[1] = 3;
  CHECK(t.version() == version + 1);
  CHECK(raw::select(t, 0, 1).exposed());  // a view sees the same memory
  CHECK(t.data<float>()[1] == 3);
  CHECK_THROWS_WITH_AS(t.mutable_data<double>(), "[data] dtype: expected f64, got f32", Error);
  CHECK_FALSE(raw::clone(t).exposed());
}
