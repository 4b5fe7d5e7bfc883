// What PyTorch 2.13 prints of the same tensors.
#include <doctest/doctest.h>

#include <cmath>
#include <sstream>

#include "quern/ops/activation.h"
#include "quern/tensor/raw.h"

using namespace quern;

TEST_CASE("printed: two dimensions, four digits") {
  CHECK(to_string(from_vector<float>({1, 2, 3.5, 4}, {2, 2})) ==
        R"(tensor([[1.0000, 2.0000],
        [3.5000, 4.0000]]))");
  CHECK(to_string(from_vector<float>({-1.5f, 2.25f, 3.00005f, -0.1f})) ==
        "tensor([-1.5000,  2.2500,  3.0001, -0.1000])");
  CHECK(to_string(from_vector<float>({0.5f, -0.0f, 1000, 0.25f})) ==
        "tensor([5.0000e-01, -0.0000e+00, 1.0000e+03, 2.5000e-01])");
}

TEST_CASE("printed: scalars") {
  CHECK(to_string(full({}, 2.5)) == "tensor(2.5000)");
  CHECK(to_string(full({}, 7)) == "tensor(7.)");
  CHECK(to_string(full({}, -3, DType::i64)) == "tensor(-3)");
  CHECK(to_string(full({}, 1, DType::boolean)) == "tensor(True)");
  CHECK(to_string(full({}, NAN)) == "tensor(nan)");
  CHECK(to_string(full({}, 1e10)) == "tensor(1.0000e+10)");
}

TEST_CASE("printed: floats that are whole") {
  CHECK(to_string(arange(4, DType::f32)) == "tensor([0., 1., 2., 3.])");
  CHECK(to_string(from_vector<float>({1, -20, NAN, INFINITY})) ==
        "tensor([  1., -20.,  nan,  inf])");
  CHECK(to_string(from_vector<float>({0, -0.0f})) == "tensor([0., -0.])");
  CHECK(to_string(from_vector<float>({100000000, 1000000})) == "tensor([100000000.,   1000000.])");
  CHECK(to_string(from_vector<float>({1000, 1})) == "tensor([1000.,    1.])");
}

TEST_CASE("printed: scientific") {
  CHECK(to_string(from_vector<float>({1001, 1})) == "tensor([1.0010e+03, 1.0000e+00])");
  CHECK(to_string(from_vector<float>({200000000, 1000000})) == "tensor([2.0000e+08, 1.0000e+06])");
  CHECK(to_string(from_vector<float>({1e-5f, 1e-5f})) == "tensor([1.0000e-05, 1.0000e-05])");
  CHECK(to_string(from_vector<float>({1e-4f, 1e-3f})) == "tensor([1.0000e-04, 1.0000e-03])");
  CHECK(to_string(from_vector<double>({1e-300, -1e300, 0}, {3, 1})) ==
        R"(tensor([[ 1.0000e-300],
        [-1.0000e+300],
        [  0.0000e+00]], dtype=torch.float64))");
  CHECK(to_string(from_vector<float>({1e-20f, NAN, -INFINITY, 0, -2})) ==
        "tensor([ 1.0000e-20,         nan,        -inf,  0.0000e+00, -2.0000e+00])");
}

TEST_CASE("printed: no number decides") {
  CHECK(to_string(full({2}, NAN)) == "tensor([nan, nan])");
  CHECK(to_string(from_vector<float>({INFINITY, -INFINITY, -NAN, 0})) ==
        "tensor([inf, -inf, nan, 0.])");
}

TEST_CASE("printed: integers and truth") {
  CHECK(to_string(from_vector<int64_t>({1, -10, 100}, {3})) == "tensor([  1, -10, 100])");
  CHECK(to_string(from_vector<int64_t>({INT64_MIN, INT64_MAX})) ==
        "tensor([-9223372036854775808,  9223372036854775807])");
  CHECK(to_string(from_vector<int32_t>({1, 2, 3, 4}, {2, 2})) ==
        R"(tensor([[1, 2],
        [3, 4]], dtype=torch.int32))");
  CHECK(to_string(from_vector<uint8_t>({0, 255})) == "tensor([  0, 255], dtype=torch.uint8)");
  CHECK(to_string(raw::to(arange(3), DType::boolean)) == "tensor([False,  True,  True])");
}

TEST_CASE("printed: other floating types") {
  CHECK(to_string(from_vector<double>({0.1, 0.2})) ==
        "tensor([0.1000, 0.2000], dtype=torch.float64)");
  CHECK(to_string(raw::to(from_vector<float>({0.1f, 3.14159f, 1e3f}), DType::bf16)) ==
        "tensor([1.0010e-01, 3.1406e+00, 1.0000e+03], dtype=torch.bfloat16)");
  CHECK(to_string(ones({2}, DType::bf16)) == "tensor([1., 1.], dtype=torch.bfloat16)");
  CHECK(to_string(from_vector<float16>({float16(0.1f), float16(-65504.0f)})) ==
        "tensor([ 9.9976e-02, -6.5504e+04], dtype=torch.float16)");
}

TEST_CASE("printed: without elements") {
  CHECK(to_string(empty({0})) == "tensor([])");
  CHECK(to_string(empty({0}, DType::i64)) == "tensor([], dtype=torch.int64)");
  CHECK(to_string(empty({2, 0})) == "tensor([], size=(2, 0))");
  CHECK(to_string(empty({0, 3, 1}, DType::boolean)) ==
        "tensor([], size=(0, 3, 1), dtype=torch.bool)");
}

TEST_CASE("printed: more dimensions, and lines of 80") {
  CHECK(to_string(raw::reshape(arange(8), {2, 2, 2})) ==
        R"(tensor([[[0, 1],
         [2, 3]],

        [[4, 5],
         [6, 7]]]))");
  CHECK(to_string(raw::reshape(arange(4, DType::f32), {1, 2, 1, 2})) ==
        R"(tensor([[[[0., 1.]],

         [[2., 3.]]]]))");
  CHECK(to_string(arange(30)) ==
        R"(tensor([ 0,  1,  2,  3,  4,  5,  6,  7,  8,  9, 10, 11, 12, 13, 14, 15, 16, 17,
        18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29]))");
  CHECK(to_string(raw::reshape(arange(24, DType::f64), {2, 12})) ==
        R"(tensor([[ 0.,  1.,  2.,  3.,  4.,  5.,  6.,  7.,  8.,  9., 10., 11.],
        [12., 13., 14., 15., 16., 17., 18., 19., 20., 21., 22., 23.]],
       dtype=torch.float64))");
}

TEST_CASE("printed: the ends of large ones") {
  CHECK(to_string(arange(1000)).find("...") == std::string::npos);
  CHECK(to_string(arange(1001)) == "tensor([   0,    1,    2,  ...,  998,  999, 1000])");
  CHECK(to_string(arange(1100, DType::f32)) ==
        R"(tensor([0.0000e+00, 1.0000e+00, 2.0000e+00,  ..., 1.0970e+03, 1.0980e+03,
        1.0990e+03]))");
  CHECK(to_string(raw::reshape(arange(1100, DType::f32), {11, 100})) ==
        R"(tensor([[0.0000e+00, 1.0000e+00, 2.0000e+00,  ..., 9.7000e+01, 9.8000e+01,
         9.9000e+01],
        [1.0000e+02, 1.0100e+02, 1.0200e+02,  ..., 1.9700e+02, 1.9800e+02,
         1.9900e+02],
        [2.0000e+02, 2.0100e+02, 2.0200e+02,  ..., 2.9700e+02, 2.9800e+02,
         2.9900e+02],
        ...,
        [8.0000e+02, 8.0100e+02, 8.0200e+02,  ..., 8.9700e+02, 8.9800e+02,
         8.9900e+02],
        [9.0000e+02, 9.0100e+02, 9.0200e+02,  ..., 9.9700e+02, 9.9800e+02,
         9.9900e+02],
        [1.0000e+03, 1.0010e+03, 1.0020e+03,  ..., 1.0970e+03, 1.0980e+03,
         1.0990e+03]]))");
  CHECK(to_string(raw::reshape(arange(1008, DType::i32), {3, 7, 48})) ==
        R"(tensor([[[   0,    1,    2,  ...,   45,   46,   47],
         [  48,   49,   50,  ...,   93,   94,   95],
         [  96,   97,   98,  ...,  141,  142,  143],
         ...,
         [ 192,  193,  194,  ...,  237,  238,  239],
         [ 240,  241,  242,  ...,  285,  286,  287],
         [ 288,  289,  290,  ...,  333,  334,  335]],

        [[ 336,  337,  338,  ...,  381,  382,  383],
         [ 384,  385,  386,  ...,  429,  430,  431],
         [ 432,  433,  434,  ...,  477,  478,  479],
         ...,
         [ 528,  529,  530,  ...,  573,  574,  575],
         [ 576,  577,  578,  ...,  621,  622,  623],
         [ 624,  625,  626,  ...,  669,  670,  671]],

        [[ 672,  673,  674,  ...,  717,  718,  719],
         [ 720,  721,  722,  ...,  765,  766,  767],
         [ 768,  769,  770,  ...,  813,  814,  815],
         ...,
         [ 864,  865,  866,  ...,  909,  910,  911],
         [ 912,  913,  914,  ...,  957,  958,  959],
         [ 960,  961,  962,  ..., 1005, 1006, 1007]]], dtype=torch.int32))");
  CHECK(to_string(ones({1001, 1})) ==
        R"(tensor([[1.],
        [1.],
        [1.],
        ...,
        [1.],
        [1.],
        [1.]]))");
}

TEST_CASE("printed: whatever the strides") {
  CHECK(to_string(raw::transpose(raw::reshape(arange(6, DType::f32), {2, 3}), 0, 1)) ==
        R"(tensor([[0., 3.],
        [1., 4.],
        [2., 5.]]))");
  CHECK(to_string(raw::slice(arange(10), 0, 1, 9, 3)) == "tensor([1, 4, 7])");
  CHECK(to_string(raw::expand(full({1, 2}, 0.5), {3, 2})) ==
        R"(tensor([[0.5000, 0.5000],
        [0.5000, 0.5000],
        [0.5000, 0.5000]]))");
  CHECK(to_string(raw::contiguous(raw::reshape(arange(8, DType::f32), {1, 2, 2, 2}),
                                  MemoryFormat::channels_last)) ==
        R"(tensor([[[[0., 1.],
          [2., 3.]],

         [[4., 5.],
          [6., 7.]]]]))");
  CHECK(to_string(raw::transpose(raw::reshape(arange(2000), {2, 1000}), 0, 1)) ==
        R"(tensor([[   0, 1000],
        [   1, 1001],
        [   2, 1002],
        ...,
        [ 997, 1997],
        [ 998, 1998],
        [ 999, 1999]]))");
}

TEST_CASE("printed: gradients") {
  CHECK(to_string(ones({2}).requires_grad_()) == "tensor([1., 1.], requires_grad=True)");
  CHECK(to_string(full({2}, 0.25, DType::bf16).requires_grad_()) ==
        "tensor([0.2500, 0.2500], dtype=torch.bfloat16, requires_grad=True)");
  CHECK(to_string(zeros({8}, DType::f64).requires_grad_()) ==
        R"(tensor([0., 0., 0., 0., 0., 0., 0., 0.], dtype=torch.float64,
       requires_grad=True))");
  CHECK(to_string(full({8}, 0.5, DType::f64).requires_grad_()) ==
        R"(tensor([0.5000, 0.5000, 0.5000, 0.5000, 0.5000, 0.5000, 0.5000, 0.5000],
       dtype=torch.float64, requires_grad=True))");
  CHECK(to_string(full({4, 2}, 0.5, DType::f64).requires_grad_()) ==
        R"(tensor([[0.5000, 0.5000],
        [0.5000, 0.5000],
        [0.5000, 0.5000],
        [0.5000, 0.5000]], dtype=torch.float64, requires_grad=True))");
  CHECK(to_string(ones({2}).requires_grad_().detach()) == "tensor([1., 1.])");
}

TEST_CASE("printed: what PyTorch has no like of") {
  CHECK(to_string(Tensor()) == "undefined");
  CHECK(to_string(relu(ones({2}).requires_grad_())) == "tensor([1., 1.], grad_fn=<relu>)");
  CHECK(to_string(relu(ones({2}).requires_grad_()).detach()) == "tensor([1., 1.])");
}

TEST_CASE("printed: by streams and by fmt alike") {
  const Tensor t = from_vector<float>({0.5f, -1});
  std::ostringstream out;
  out << "t = " << t << '!';
  CHECK(out.str() == "t = tensor([ 0.5000, -1.0000])!");
  CHECK(fmt::format("t = {}!", t) == out.str());
  CHECK_FALSE(t.exposed());
}
