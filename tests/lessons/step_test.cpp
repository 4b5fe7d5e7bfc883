// The steps of the lesson on the training step: against f64, within the bound of their arithmetic;
// what they move and keep; and its exercises.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>

#include "gemm/gemm.h"
#include "step/2_prologue.h"
#include "step/3_library.h"

using namespace quern;
using namespace quern::lessons;
using namespace quern::lessons::step;

namespace {

Tensor normal(const Shape& shape, uint64_t stream) {
  const Tensor t = empty(shape);
  fill_normal(t.out<float>(), t.numel(), 1, stream);
  return t;
}

/// Pixels in two whole blocks and a part of one; no number of channels fills tiles or vectors. Few
/// numbers, so that no relu is so near to 0 that rounding may change its slope.
struct Operands {
  int64_t pixels = 300, in = 5, mid = 9, out = 7;
  Tensor x = normal({pixels, in}, 51) + 0.5, dout = normal({pixels, out}, 2);
  Parameters p{normal({mid, in}, 3), normal({mid}, 4), normal({mid}, 5), normal({out, mid}, 6)};
};

/// out, dx, dw1, dweight, dbias, dw2
using Results = std::vector<Tensor>;

template <class Step>
Results results_of(const Operands& o) {
  Step step;
  Parameters g;
  const Tensor out = step.forward(o.x, o.p), dx = step.backward(o.dout, o.p, g);
  return {out, dx, g.w1, g.weight, g.bias, g.w2};
}

double largest(const Tensor& t) {
  double all = 0;
  for (double v : to(t, DType::f64).to_vector<double>()) all = std::max(all, std::abs(v));
  return all;
}
Tensor transposed(const Tensor& t) { return raw::transpose(t, 0, 1); }

struct Reference {
  Results results, bounds;
};

/// In f64 by the library's ops; and how far what computes in f32 may be from that, number by
/// number: to first order in u = 2^-24. e_v is the error of v.
Reference reference(const Operands& o) {
  const auto wide = [](const Tensor& t) { return to(t, DType::f64); };
  const Tensor x = wide(o.x), w1 = wide(o.p.w1), w2 = wide(o.p.w2), dout = wide(o.dout);
  Tensor y = matmul(x, transposed(w1)).requires_grad_();
  Tensor weight = wide(o.p.weight).requires_grad_(), bias = wide(o.p.bias).requires_grad_();
  const Tensor n = batch_norm(y, {}, {}, weight, bias, true), z = relu(n);
  z.backward(matmul(dout, w2));

  const NoGradGuard no_grad;
  constexpr double u = 0x1p-24, block = Block::kPixels * u;
  const auto product = [](const Tensor& a, const Tensor& b) {  // its own error
    return matmul(abs(a), abs(b)) * (static_cast<double>(a.size(1) + 2) * u);
  };
  const auto average = [](const Tensor& t) { return mean(t, {0}); };
  const Tensor distance = y - average(y), d = abs(distance);
  const Tensor invstd = 1 / sqrt(average(distance * distance) + 1e-5), scale = abs(weight) * invstd;

  const Tensor e_y = product(x, transposed(w1));
  const Tensor e_distance = e_y + average(e_y) + average(abs(y)) * (block + 2 * u) + d * u;
  const Tensor r = average(e_y * d) * invstd * invstd + block + 4 * u;  // of invstd, relative to it
  const Tensor e_n = scale * (e_distance + d * (r + 3 * u)) + abs(n) * u;
  for (double v : (abs(n) - e_n).to_vector<double>()) REQUIRE(v > 0);  // all slopes are the same

  const Tensor dz = matmul(dout, w2), dn = dz * (z / n), dy = y.grad(), e_dz = product(dout, w2);
  const Tensor e_sum = average(e_dz) + average(abs(dn)) * (block + 2 * u);
  const Tensor e_products =
      average(e_dz * d + abs(dn) * e_distance) + average(abs(dn) * d) * (block + 3 * u);
  const Tensor slope = abs(average(dn * distance)) * invstd * invstd;  // b·(y - center) is by it
  const Tensor terms = abs(dn) + abs(average(dn)) + slope * d;
  const Tensor e_dy = scale * (e_dz + e_sum + d * e_products * invstd * invstd +
                               slope * e_distance + terms * (3 * r + 8 * u));
  const auto pixels = static_cast<double>(o.pixels);
  return {{matmul(z, transposed(w2)), matmul(dy, w1), matmul(transposed(dy), x), weight.grad(),
           bias.grad(), matmul(transposed(dout), z)},
          {matmul(e_n, transposed(abs(w2))) + product(z, transposed(w2)),
           matmul(e_dy, abs(w1)) + product(dy, w1),
           matmul(transposed(e_dy), abs(x)) + product(transposed(dy), x),
           invstd * (e_products + abs(average(dn * distance)) * (r + 2 * u)) * pixels,
           e_sum * pixels, matmul(transposed(abs(dout)), e_n) + product(transposed(dout), z)}};
}

bool same_bits(const Results& a, const Results& b) {
  for (size_t i = 0; i < a.size(); ++i)
    if (std::memcmp(a[i].data<float>(), b[i].data<float>(), a[i].nbytes()) != 0) return false;
  return true;
}

template <class Step>
Results checked(const Reference& expected) {
  const Operands o;
  const Results got = results_of<Step>(o);
  for (size_t i = 0; i < got.size(); ++i) {
    CAPTURE(i);
    CHECK(largest((got[i] - expected.results[i]) / expected.bounds[i]) < 1);
    CHECK(largest(expected.bounds[i]) < 1e-3 * largest(expected.results[i]));
  }
  return got;
}

/// What a pass moves, in bytes.
template <class F>
int64_t moved(F f) {
  traffic = {};
  f();
  return traffic.bytes();
}

const auto skip = doctest::skip(!isa_enabled(kVectorIsa));

}  // namespace

TEST_CASE("The steps: forward and backward as in f64" * skip) {
  const Reference expected = reference({});
  checked<ThreePasses>(expected);
  const Results stored = checked<MomentsInEpilogue>(expected);
  CHECK(same_bits(stored, checked<NormalisedByReader>(expected)));
}

TEST_CASE("The steps: same bits on any number of threads" * skip) {
  const int before = num_threads();
  const auto on_one_and_three = []<class Step>(Step) {
    set_num_threads(1);
    const Results one = results_of<Step>({});
    set_num_threads(3);
    CHECK(same_bits(one, results_of<Step>({})));
  };
  on_one_and_three(ThreePasses()), on_one_and_three(MomentsInEpilogue());
  on_one_and_three(NormalisedByReader());
  set_num_threads(before);
}

TEST_CASE("The steps: moments of a block keep a small variance beside a large mean" * skip) {
  const Tensor y = normal({300, 3}, 1) + 4096;
  const BlockMoments moments(300, block_count(y), 3);
  const auto rows = read(y);
  each_block(y, [&](const Block& block) { moments.take(block, rows(block)); });
  const Tensor exact = to(y, DType::f64), center = mean(exact, {0});
  const Tensor var = mean((exact - center) * (exact - center), {0});
  // A block's mean is off by d <= 129·2^-24·4100;
  // the squares around it by d² and their own rounding.
  const double d = 129 * 0x1p-24 * 4100;
  CHECK(largest(moments.merged().mean - center) < d);
  CHECK(largest(moments.merged().var - var) < d * d + 2 * d + 132 * 0x1p-24 * largest(var));
}

TEST_CASE("The steps: filters of another number of channels are refused" * skip) {
  const Operands o;
  CHECK_THROWS_WITH_AS(ThreePasses().forward(o.dout, o.p),
                       "[product] x: expected 5 channels, got 7", Error);
}

TEST_CASE("A residual block as one op is the same as op by op, and keeps less") {
  const auto blocks = [](uint64_t stream) {
    const auto stage = [&](uint64_t i) {
      ConvStage s;
      s.weight = to(normal({6, 6, 1, 1}, stream + i), DType::f64).requires_grad_();
      s.bn_weight = ones({6}, DType::f64).requires_grad_();
      s.bn_bias = zeros({6}, DType::f64).requires_grad_();
      return s;
    };
    return ResidualBlock{stage(0), stage(1)};
  };
  const auto run = [&](auto f) {
    const ResidualBlock b = blocks(7);
    Tensor x = to(normal({2, 6, 5, 5}, 1), DType::f64).requires_grad_();
    const Tensor y = f(x, b);
    y.backward(ones_like(y));
    return Results{y, x.grad(), b[0].weight.grad(), b[1].bn_weight.grad()};
  };
  const Results one = run(as_one_op), several = run(op_by_op);
  for (size_t i = 0; i < one.size(); ++i)
    CHECK(largest(one[i] - several[i]) < 1e-12 * largest(several[i]));
}

// Exercises.

TEST_CASE("Step 1: what each step moves, from the shapes alone" * skip) {
  const Operands o;
  const int64_t x = o.x.nbytes(), y = o.pixels * o.mid * 4, out = o.dout.nbytes();
  const auto check = [&]<class Step>(Step step, int64_t forward, int64_t backward) {
    Parameters g;
    CHECK(moved([&] { step.forward(o.x, o.p); }) == forward);
    CHECK(moved([&] { step.backward(o.dout, o.p, g); }) == backward);
  };
  // (x, y), as many of y as in the table, (y, out); back: (y, out), (out, y), ..., (x, y), (y, x)
  check(ConvolutionsAlone(), x + 2 * y + out, 2 * x + 4 * y + 2 * out);
  check(ThreePasses(), x + 6 * y + out, 2 * x + 9 * y + 2 * out);
  check(MomentsInEpilogue(), x + 4 * y + out, 2 * x + 8 * y + 2 * out);
  check(NormalisedByReader(), x + 2 * y + out, 2 * x + 8 * y + 2 * out);
}

TEST_CASE("Step 2: dy made by its readers is never in memory, and saves one tensor" * skip) {
  const Operands o;
  NormalisedByReader step;
  step.forward(o.x, o.p);
  Parameters expected, g;
  Tensor dx;
  const int64_t before = moved([&] { dx = step.backward(o.dout, o.p, expected); });

  Tensor got, dw1;
  const int64_t after = moved([&] {
    g.w2 = weight_gradient(step.y, o.dout, through(step.norm));
    const BlockSums sums(step.y), products(step.y);
    const auto rows = read(step.y);
    const Tensor dz = input_gradient(o.dout, o.p.w2, [&](const Block& block, Rows slopes) {
      add_gradients(rows(block), step.norm.map(), slopes.v, sums.of(block), products.of(block));
    });
    const NormGradient n(step.norm, sums.mean(), products.mean(), o.pixels, g);
    const auto as_dy = [&](const Block& block, Rows slopes, float* room) {
      std::copy_n(slopes.v, slopes.count * slopes.channels, room);
      apply_gradient(rows(block), step.norm.map(), n.a.data<float>(), n.b.data<float>(),
                     n.c.data<float>(), room);
      return Rows{room, slopes.count, slopes.channels};
    };
    dw1 = weight_gradient(dz, o.x, as_dy);  // transposed: xᵀ·dy
    read(step.y);
    got = product(dz, o.p.w1, as_dy, nothing_more);
    read(step.y);
  });
  CHECK(
      same_bits({got, g.weight, g.bias, g.w2}, {dx, expected.weight, expected.bias, expected.w2}));
  CHECK(largest(dw1 - transposed(expected.w1)) < 1e-5 * largest(expected.w1));  // other sums
  CHECK(before - after == step.y.nbytes());
}

TEST_CASE("Step 3: z does not do in place of y" * skip) {
  // Two y of one channel that differ where the relu cuts them: the same z, and another dy.
  const Norm norm({zeros({1}, DType::f64), ones({1}, DType::f64)},
                  {.w1 = {}, .weight = ones({1}), .bias = zeros({1}), .w2 = {}});
  const Tensor y = from_vector<float>({-1, -2, 1, 2}, {4, 1});
  const Tensor other = from_vector<float>({-2, -1, 1, 2}, {4, 1});
  CHECK(normalise(y, norm).to_vector<float>() == normalise(other, norm).to_vector<float>());
  const auto gradient = [&](const Tensor& v) {
    Parameters g;
    const Tensor dz = ones({4, 1});
    apply_gradient(norm, gradient_of(norm, v, dz, g), v, dz);
    return dz.to_vector<float>();
  };
  CHECK(gradient(y) != gradient(other));
}
