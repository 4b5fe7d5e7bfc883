// The joins of outputs that a gate multiplies: sums of what is written, gradients behind the gate;
// every record against f64.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/gemm_oracle.h"
#include "kernels/records.h"
#include "quern/ops/kernels/activation.h"
#include "quern/ops/kernels/norm/join.h"
#include "quern/tensor/parallel.h"
#include "tensor/threads.h"

using namespace quern;
using namespace quern::kernels;
using quern::test::Elements;
using quern::test::unit_roundoff;

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr Activation kActivations[] = {Activation::none, Activation::relu, Activation::relu6,
                                       Activation::silu, Activation::hardswish};

using Sums = std::vector<double>;

/// v and dout, rows of `stride` elements, of which the first channels are numbers.
struct Problem {
  Problem(DType dtype, Activation activation, const BatchNormSize& size, int64_t padding)
      : dtype(dtype),
        parameter(dtype == DType::f64 ? DType::f64 : DType::f32),
        activation(activation),
        size(size),
        stride(size.channels + padding),
        rows(size.images * size.pixels),
        v(elements()),
        dout(elements()),
        map{{parameter, size.channels}, {parameter, size.channels}, {parameter, size.channels}},
        factors(parameter, size.images * size.channels),
        shifts(parameter, size.images * size.channels) {
    v.fill_random(1), dout.fill_random(2), factors.fill_random(6), shifts.fill_random(7);
    for (uint32_t k = 0; k < 3; ++k) map[k].fill_random(3 + k);
  }
  Elements elements() const {
    Elements e(dtype, (rows - 1) * stride + size.channels);
    e.fill(kNaN);
    return e;
  }
  JoinSide branch(void* dv = nullptr) const {
    return {
        .v = v.data(), .map = {map[0].data(), map[1].data(), map[2].data(), activation}, .dv = dv};
  }
  JoinGradient gradient() const {
    return {.dout = dout.data(), .scale = factors.data(), .shift = shifts.data()};
  }
  BatchNormBlock block() const { return {rows, size.channels, stride}; }

  double before(int64_t i, int64_t c) const {
    return (v.get(i) - map[0].get(c)) * map[1].get(c) + map[2].get(c);
  }
  double out(int64_t i, int64_t c) const { return activated(before(i, c), activation); }
  double dz(int64_t i, int64_t c) const {
    const int64_t of_image = i / stride / size.pixels * size.channels + c;
    const double gated = dout.get(i) * factors.get(of_image) + shifts.get(of_image);
    return through(gated, before(i, c), activation);
  }
  template <class F>
  void each(F f) const {
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < size.channels; ++c) f(r * stride + c, c);
  }
  /// But for some roundings of what is below 8, and that of storing it.
  bool close(double got, double expected) const {
    return std::fabs(got - expected) <= 64 * unit_roundoff(parameter) * (std::fabs(expected) + 8) +
                                            unit_roundoff(dtype) * std::fabs(expected);
  }
  /// A sum of n of them, of which at most 256 are added up in a row.
  bool close_sum(double got, double expected, int64_t n) const {
    const double each = (64 + 256) * unit_roundoff(parameter) * 16;
    return std::fabs(got - expected) <= static_cast<double>(n) * each;
  }

  DType dtype, parameter;
  Activation activation;
  BatchNormSize size;
  int64_t stride, rows;
  Elements v, dout, map[3], factors, shifts;
};

template <class F>
void each_way(F f) {
  test::each_runnable(table<JoinKernel>(), [&](const JoinKernel& kernel) {
    for (const Activation activation : kActivations) {
      CAPTURE(static_cast<int>(activation));
      f(kernel, activation);
    }
  });
}

}  // namespace

TEST_CASE("join kernels sum what they write") {
  each_way([](const JoinKernel& kernel, Activation activation) {
    for (const int64_t channels : {1, 8, 16, 37, 96})
      for (const bool streams : {false, true}) {
        if (streams && channels != 96) continue;  // rows of whole cache lines
        CAPTURE(channels);
        const Problem p(kernel.dtype, activation, {1, 23, channels}, streams ? 32 : 3);
        const Elements out = p.elements(), other = p.elements();
        Sums sums(static_cast<size_t>(channels), kNaN), expected(sums.size());
        kernel.forward(p.block(), p.branch(), {}, out.data(), nullptr, sums.data(), streams);
        kernel.forward(p.block(), p.branch(), {}, other.data(), nullptr, nullptr, streams);
        CHECK(std::memcmp(out.data(), other.data(),
                          static_cast<size_t>(out.count() * itemsize(p.dtype))) == 0);
        p.each([&](int64_t i, int64_t c) {
          CHECK(p.close(out.get(i), p.out(i, c)));
          expected[static_cast<size_t>(c)] += p.out(i, c);
        });
        for (size_t c = 0; c < sums.size(); ++c) CHECK(p.close_sum(sums[c], expected[c], p.rows));
      }
  });
}

TEST_CASE("join kernels pass gradients back through a gate") {
  each_way([](const JoinKernel& kernel, Activation activation) {
    for (const int64_t channels : {1, 7, 16, 37, 81}) {
      CAPTURE(channels);
      const Problem p(kernel.dtype, activation, {1, 23, channels}, 3);
      for (const bool in_place : {false, true}) {
        const Elements other = p.elements();
        const Elements& dz = in_place ? p.dout : other;
        std::vector<double> all;
        p.each([&](int64_t i, int64_t c) { all.push_back(p.dz(i, c)); });
        Sums sums[2] = {Sums(static_cast<size_t>(channels), kNaN),
                        Sums(static_cast<size_t>(channels), kNaN)};
        double* pointers[] = {sums[0].data(), sums[1].data(), nullptr};
        kernel.reduce(p.block(), p.branch(dz.data()), {}, p.gradient(), pointers);
        Sums expected[2] = {Sums(sums[0].size()), Sums(sums[0].size())};
        auto next = all.begin();
        p.each([&](int64_t i, int64_t c) {
          CHECK(p.close(dz.get(i), *next));
          expected[0][static_cast<size_t>(c)] += *next;
          expected[1][static_cast<size_t>(c)] += *next++ * (p.v.get(i) - p.map[0].get(c));
        });
        for (size_t c = 0; c < sums[0].size(); ++c)
          for (size_t k : {0, 1}) CHECK(p.close_sum(sums[k][c], expected[k][c], p.rows));
      }
    }
  });
}

TEST_CASE("join passes behind gates go by image, the same for any number of threads") {
  const test::Threads kept;
  each_way([](const JoinKernel& kernel, Activation activation) {
    for (const BatchNormSize size :
         {BatchNormSize{3, 1153, 5}, {5, 49, 300}, {1, 1, 7}, {2, 70, 2100}}) {
      const Problem p(kernel.dtype, activation, size, 0);
      const auto channels = static_cast<size_t>(size.channels);
      Sums expected(static_cast<size_t>(size.images) * channels), expected_dz(channels),
          expected_dzv(channels);
      p.each([&](int64_t i, int64_t c) {
        const auto image = static_cast<size_t>(i / p.stride / size.pixels);
        const auto k = static_cast<size_t>(c);
        const double dz = p.dz(i, c);
        expected[image * channels + k] += p.out(i, c);
        expected_dz[k] += dz;
        expected_dzv[k] += dz * (p.v.get(i) - p.map[0].get(c));
      });
      Sums first, first_dz, first_dzv;
      for (int n : {1, 2, 3}) {
        set_num_threads(n);
        const Elements out = p.elements(), dz_of = p.elements();
        Sums sums(expected.size(), kNaN), dz(channels, kNaN), dzv(channels, kNaN);
        join_forward_sums(kernel, size, p.branch(), out.data(), sums.data());
        join_reduce(kernel, size, p.branch(dz_of.data()), {}, p.gradient(), dz.data(), dzv.data(),
                    nullptr);
        if (n > 1) {
          CHECK(sums == first);
          CHECK(dz == first_dz);
          CHECK(dzv == first_dzv);
          continue;
        }
        first = sums, first_dz = dz, first_dzv = dzv;
        bool right = true;
        p.each([&](int64_t i, int64_t c) {
          right &= p.close(out.get(i), p.out(i, c)) && p.close(dz_of.get(i), p.dz(i, c));
        });
        CHECK(right);
        for (size_t i = 0; i < sums.size(); ++i)
          CHECK(p.close_sum(sums[i], expected[i], size.pixels));
        for (size_t c = 0; c < channels; ++c) {
          CHECK(p.close_sum(dz[c], expected_dz[c], p.rows));
          CHECK(p.close_sum(dzv[c], expected_dzv[c], p.rows));
        }
      }
    }
  });
}
