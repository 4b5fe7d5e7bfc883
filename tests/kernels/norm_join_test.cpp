// Every join record against f64, on blocks with padded rows, and the passes that merge them.
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/gemm_oracle.h"
#include "kernels/records.h"
#include "quern/ops/kernels/norm/join.h"
#include "quern/tensor/cpu_features.h"
#include "quern/tensor/parallel.h"
#include "tensor/threads.h"

using namespace quern;
using namespace quern::kernels;
using quern::test::Elements;
using quern::test::Sum;
using quern::test::unit_roundoff;

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
enum class Shortcut { none, identity, projection };

/// Two sides that meet in one [rows, stride] array, of whose rows `channels` are theirs.
struct Problem {
  Problem(const JoinKernel& kernel, Shortcut shortcut, int64_t rows, int64_t channels,
          int64_t padding)
      : dtype(kernel.dtype),
        parameter(dtype == DType::f64 ? DType::f64 : DType::f32),
        shortcut(shortcut),
        block{rows, channels, channels + padding},
        branch_v(elements()),
        shortcut_v(elements()),
        dout(elements()),
        mask(static_cast<size_t>(rows * mask_words(block.stride)), 0xffff) {
    branch_v.fill_random(1), shortcut_v.fill_random(2), dout.fill_random(3);
    for (uint32_t k = 0; k < 12; ++k)
      parameters.emplace_back(parameter, channels).fill_random(10 + k);
  }
  Elements elements() const {
    Elements e(dtype, (block.rows - 1) * block.stride + block.channels);
    e.fill(kNaN);
    return e;
  }
  JoinSide side(size_t which, const void* v, void* dv, bool affine) const {
    if (!affine) return {.v = v, .dv = dv};
    const Elements* p = &parameters[which * 6];
    return {.v = v,
            .map = {p[0].data(), p[1].data(), p[2].data(), activation},
            .a = p[3].data(),
            .b = p[4].data(),
            .c = p[5].data(),
            .dv = dv};
  }
  JoinSide branch(void* dv = nullptr) const { return side(0, branch_v.data(), dv, true); }
  JoinSide other(void* dv = nullptr) const {
    if (shortcut == Shortcut::none) return {};
    return side(1, shortcut_v.data(), dv, shortcut == Shortcut::projection);
  }
  JoinGradient gradient() const { return {dout.data(), mask.data()}; }
  double get(size_t which, size_t k, int64_t c) const { return parameters[which * 6 + k].get(c); }

  template <class F>
  void each(F f) const {
    for (int64_t r = 0; r < block.rows; ++r)
      for (int64_t c = 0; c < block.channels; ++c) f(r * block.stride + c, c);
  }
  /// Relative error of n roundings; twice that in f64, where the oracle errs as much.
  double gamma(double n) const {
    const double u = unit_roundoff(parameter);
    return (dtype == DType::f64 ? 2 : 1) * n * u / (1 - n * u);
  }
  /// Is `got` the sum, but for n roundings of its terms and that of storing it?
  bool close(double got, const Sum& expected, double n) const {
    const double computed = gamma(n) * expected.magnitude;
    return std::fabs(got - expected.value) <=
           computed + unit_roundoff(dtype) * (std::fabs(expected.value) + computed);
  }
  bool passes(int64_t i, int64_t c) const {
    const int64_t word = i / block.stride * mask_words(block.stride) + c / 16;
    return mask[static_cast<size_t>(word)] >> c % 16 & 1;
  }
  bool padding_is_nan(const Elements& e) const {
    for (int64_t i = 0; i < e.count(); ++i)
      if (i % block.stride >= block.channels && !std::isnan(e.get(i))) return false;
    return true;
  }

  DType dtype, parameter;
  Shortcut shortcut;
  Activation activation = Activation::relu;
  BatchNormBlock block;
  Elements branch_v, shortcut_v, dout;
  mutable std::vector<MaskWord> mask;  // forward's
  std::vector<Elements>
      parameters;  // center, scale, shift, a, b, c of the branch, then the shortcut
};

bool same(DType dtype, const Elements& a, const Elements& b) {
  return std::memcmp(a.data(), b.data(), static_cast<size_t>(a.count() * itemsize(dtype))) == 0;
}

/// Leaves the mask in p, for those of the gradient.
void check_forward(const JoinKernel& kernel, const Problem& p, const Elements& out, bool streams) {
  kernel.forward(p.block, p.branch(), p.other(), out.data(), p.mask.data(), nullptr, streams);
  CHECK(p.padding_is_nan(out));
  bool right = true;
  p.each([&](int64_t i, int64_t c) {
    Sum sum;
    const auto add = [&](size_t side, double v) {
      sum.add((v - p.get(side, 0, c)) * p.get(side, 1, c)), sum.add(p.get(side, 2, c));
    };
    add(0, p.branch_v.get(i));
    if (p.shortcut == Shortcut::identity) sum.add(p.shortcut_v.get(i));
    if (p.shortcut == Shortcut::projection) add(1, p.shortcut_v.get(i));
    const double got = out.get(i);
    right &= p.close(got, sum, 5) || (got == 0 && sum.value <= p.gamma(5) * sum.magnitude);
    right &= got >= 0;
    right &= p.passes(i, c) == (got != 0);
  });
  CHECK(right);
  const Elements again = p.elements();
  kernel.forward(p.block, p.branch(), p.other(), again.data(), nullptr, nullptr, streams);
  CHECK(same(p.dtype, again, out));
}

using Triple = std::array<std::vector<double>, 3>;

Triple reduce(const JoinKernel& kernel, const Problem& p) {
  Triple sums;
  for (auto& sum : sums) sum.assign(static_cast<size_t>(p.block.channels), kNaN);
  double* pointers[] = {sums[0].data(), sums[1].data(), sums[2].data()};
  kernel.reduce(p.block, p.branch(), p.other(), p.gradient(), pointers);
  return sums;
}

/// `got`, of at most n additions in a row, against sums in f64.
void check_sums(const Problem& p, const Elements& out, const Triple& got, double n) {
  for (int64_t c = 0; c < p.block.channels; ++c) {
    Sum sum[3];
    for (int64_t r = 0; r < p.block.rows; ++r) {
      const int64_t i = r * p.block.stride + c;
      const double dz = out.get(i) > 0 ? p.dout.get(i) : 0;
      sum[0].add(dz);
      sum[1].add(dz * (p.branch_v.get(i) - p.get(0, 0, c)));
      sum[2].add(dz * (p.shortcut_v.get(i) - p.get(1, 0, c)));
    }
    for (size_t k = 0; k < (p.shortcut == Shortcut::projection ? 3 : 2); ++k)
      CHECK_LE(std::fabs(got[k][static_cast<size_t>(c)] - sum[k].value),
               p.gamma(n + 2) * sum[k].magnitude);
  }
  if (p.shortcut != Shortcut::projection)
    for (double untouched : got[2]) CHECK(std::isnan(untouched));
}

void check_reduce(const JoinKernel& kernel, const Problem& p, const Elements& out) {
  check_sums(p, out, reduce(kernel, p), static_cast<double>(p.block.rows));
}

void check_apply(const JoinKernel& kernel, const Problem& p, const Elements& out, bool streams) {
  const Elements dv = p.elements();
  Elements dw = p.elements();  // in place of dout
  p.each([&](int64_t i, int64_t) { dw.set(i, p.dout.get(i)); });
  kernel.apply(p.block, p.branch(dv.data()), p.other(dw.data()), {dw.data(), p.mask.data()},
               streams);
  CHECK(p.padding_is_nan(dv));
  CHECK(p.padding_is_nan(dw));
  bool right = true;
  p.each([&](int64_t i, int64_t c) {
    const double dz = out.get(i) > 0 ? p.dout.get(i) : 0;
    const auto gradient = [&](size_t side, double v) {
      Sum sum;
      sum.add(p.get(side, 3, c) * dz);
      sum.add(p.get(side, 4, c) * (v - p.get(side, 0, c))), sum.add(p.get(side, 5, c));
      return sum;
    };
    right &= p.close(dv.get(i), gradient(0, p.branch_v.get(i)), 5);
    if (p.shortcut == Shortcut::none) right &= dw.get(i) == p.dout.get(i);
    if (p.shortcut == Shortcut::identity) right &= dw.get(i) == dz;
    if (p.shortcut == Shortcut::projection)
      right &= p.close(dw.get(i), gradient(1, p.shortcut_v.get(i)), 5);
  });
  CHECK(right);
}

template <class F>
void each_way(F f) {
  test::each_runnable(table<JoinKernel>(), [&](const JoinKernel& kernel) {
    for (Shortcut shortcut : {Shortcut::none, Shortcut::identity, Shortcut::projection}) {
      CAPTURE(shortcut);
      f(kernel, shortcut);
    }
  });
}

}  // namespace

TEST_CASE("join kernels on blocks around the sizes of vectors") {
  each_way([](const JoinKernel& kernel, Shortcut shortcut) {
    for (int64_t rows : {1, 2, 23})
      for (int64_t channels : {1, 3, 7, 8, 15, 16, 17, 33, 64, 67, 81}) {
        CAPTURE(rows);
        CAPTURE(channels);
        const Problem p(kernel, shortcut, rows, channels, 3);
        const Elements out = p.elements();
        check_forward(kernel, p, out, false);
        check_reduce(kernel, p, out);
        check_apply(kernel, p, out, false);
      }
  });
}

TEST_CASE("join kernels past the caches, on rows of whole cache lines") {
  each_way([](const JoinKernel& kernel, Shortcut shortcut) {
    for (int64_t padding : {0, 32}) {
      const Problem p(kernel, shortcut, 23, 96, padding);
      const Elements out = p.elements();
      check_forward(kernel, p, out, true);
      check_apply(kernel, p, out, true);
    }
  });
}

TEST_CASE("join kernels let NaN through") {
  each_way([](const JoinKernel& kernel, Shortcut shortcut) {
    Problem p(kernel, shortcut, 3, 18, 3);
    p.branch_v.set(p.block.stride + 17, kNaN);
    const Elements out = p.elements();
    kernel.forward(p.block, p.branch(), p.other(), out.data(), p.mask.data(), nullptr, false);
    CHECK(std::isnan(out.get(p.block.stride + 17)));
    CHECK_FALSE(std::isnan(out.get(p.block.stride + 16)));
    CHECK(p.passes(p.block.stride + 17, 17));
  });
}

TEST_CASE("join passes merge blocks, the same for any number of threads") {
  const test::Threads kept;
  each_way([](const JoinKernel& kernel, Shortcut shortcut) {
    for (const BatchNormSize size :
         {BatchNormSize{3, 1153, 5}, {5, 49, 300}, {1, 1, 7}, {1, 2100, 64}}) {
      const int64_t rows = size.images * size.pixels;
      const Problem p(kernel, shortcut, rows, size.channels, 0);
      const Elements out = p.elements(), whole = p.elements(), dv = p.elements(),
                     whole_dv = p.elements(), dw = p.elements(), whole_dw = p.elements();
      join_forward(kernel, size, p.branch(), p.other(), out.data(), p.mask.data());
      const std::vector<MaskWord> mask = p.mask;
      kernel.forward(p.block, p.branch(), p.other(), whole.data(), p.mask.data(), nullptr, false);
      CHECK(mask == p.mask);
      join_apply(kernel, size, p.branch(dv.data()), p.other(dw.data()), p.gradient());
      kernel.apply(p.block, p.branch(whole_dv.data()), p.other(whole_dw.data()), p.gradient(),
                   false);
      CHECK(same(kernel.dtype, out, whole));
      CHECK(same(kernel.dtype, dv, whole_dv));
      CHECK(same(kernel.dtype, dw, whole_dw));

      const bool three = shortcut == Shortcut::projection;
      Triple first;
      for (int n : {1, 2, 3}) {
        set_num_threads(n);
        Triple sums;
        for (auto& sum : sums) sum.assign(static_cast<size_t>(size.channels), kNaN);
        join_reduce(kernel, size, p.branch(), p.other(), p.gradient(), sums[0].data(),
                    sums[1].data(), three ? sums[2].data() : nullptr);
        if (n == 1) first = sums;
        for (size_t k = 0; k < (three ? 3 : 2); ++k) CHECK(sums[k] == first[k]);
      }
      check_sums(p, out, first, 256);  // rows of a block; blocks are merged in f64
    }
  });
}

TEST_CASE("join dispatch takes the best kernel under the cap") {
  const auto isas = {Isa::portable, Isa::avx2, Isa::avx512, Isa::avx512_bf16};
  test::each_cap(isas, table<JoinKernel>(), [](Isa isa) {
    for (DType dtype : {DType::f32, DType::bf16, DType::f64}) {
      const bool rounds = isa == Isa::avx512_bf16 && dtype != DType::bf16;
      const Isa best = rounds ? Isa::avx512 : isa;
      CHECK(select_join_kernel(dtype).name == fmt::format("join_{}_{}", dtype, to_string(best)));
    }
  });
}

TEST_CASE("joins with other activations are the reference's in f64, but for roundings") {
  const JoinKernel& reference = test::named(table<JoinKernel>(), "join_f64_reference");
  test::each_runnable(table<JoinKernel>(), [&](const JoinKernel& kernel) {
    CAPTURE(std::string(kernel.name));
    for (const Activation activation :
         {Activation::none, Activation::relu6, Activation::silu, Activation::hardswish}) {
      CAPTURE(static_cast<int>(activation));
      const bool masks = activation == Activation::relu6;
      Problem p(kernel, Shortcut::none, 5, 37, 3);
      p.activation = activation;
      Problem exact(reference, Shortcut::none, 5, 37, 3);
      exact.activation = activation;
      for (const auto& [to, from] :
           {std::pair{&exact.branch_v, &p.branch_v}, {&exact.dout, &p.dout}})
        p.each([&](int64_t i, int64_t) { to->set(i, from->get(i)); });
      for (size_t k = 0; k < p.parameters.size(); ++k)
        for (int64_t c = 0; c < 37; ++c) exact.parameters[k].set(c, p.parameters[k].get(c));
      const double u = unit_roundoff(p.parameter), rounding = unit_roundoff(p.dtype);
      const auto close = [&](double a, double b) {
        return std::fabs(a - b) <= 64 * u * (std::fabs(b) + 8) + rounding * std::fabs(b);
      };
      const bool smooth = !only_clamps(activation);
      const auto run = [&](const JoinKernel& k, Problem& q, const Elements& out, const Elements& dv,
                           const Elements& dz) {
        MaskWord* mask = masks ? q.mask.data() : nullptr;
        k.forward(q.block, q.branch(), {}, out.data(), mask, nullptr, false);
        Triple sums;
        for (auto& sum : sums) sum.assign(37, 0);
        double* pointers[] = {sums[0].data(), sums[1].data(), sums[2].data()};
        k.reduce(q.block, q.branch(dz.data()), {}, {q.dout.data(), mask}, pointers);
        k.apply(q.block, q.branch(dv.data()), {}, {q.dout.data(), mask}, false);
        // What reduce() leaves is what apply() takes, without the activation.
        if (!smooth) return sums;
        const Elements from_dz = q.elements();
        q.activation = Activation::none;
        k.apply(q.block, q.branch(from_dz.data()), {}, {dz.data()}, false);
        q.activation = activation;
        const double twice = q.dtype == DType::bf16 ? 4 * unit_roundoff(q.dtype) : 0;
        q.each([&](int64_t i, int64_t) {
          CHECK(std::fabs(from_dz.get(i) - dv.get(i)) <= twice * 64);
        });
        return sums;
      };
      const Elements out = p.elements(), dv = p.elements(), dz = p.elements();
      const Elements exact_out = exact.elements(), exact_dv = exact.elements(),
                     exact_dz = exact.elements();
      const Triple sums = run(kernel, p, out, dv, dz),
                   expected = run(reference, exact, exact_out, exact_dv, exact_dz);
      p.each([&](int64_t i, int64_t) {
        if (smooth) CHECK(close(dz.get(i), exact_dz.get(i)));
        CHECK(close(out.get(i), exact_out.get(i)));
        CHECK(close(dv.get(i), exact_dv.get(i)));
      });
      for (size_t c = 0; c < 37; ++c) {
        CHECK(std::fabs(sums[0][c] - expected[0][c]) <= 5 * 64 * u * 8);
        CHECK(std::fabs(sums[1][c] - expected[1][c]) <= 5 * 64 * u * 32);
      }
    }
  });
}
