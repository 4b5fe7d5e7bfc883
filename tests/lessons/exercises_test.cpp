// Solutions of the exercises of the lesson on GEMM, step by step.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "gemm/loops.h"
#include "larger.h"
#include "quern/tensor/cpu_features.h"
#include "quern/tensor/divide.h"

using namespace quern;
using namespace quern::lessons;

namespace {

/// Rows of numbers between -1 and 1, or of integers, whose products and sums f32 holds exactly.
struct Numbers {
  std::vector<float> values;
  int64_t stride;

  Numbers(int64_t rows, int64_t columns, uint32_t seed, bool integers = false)
      : values(static_cast<size_t>(rows * columns)), stride(columns) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (float& value : values)
      value = integers ? std::round(4 * uniform(random)) : uniform(random);
  }
  operator Matrix<const float>() const { return {values.data(), stride}; }
  operator Matrix<float>() { return {values.data(), stride}; }
};

/// What a product makes of zeros.
std::vector<float> result(Gemm<float>* gemm, Size size, Matrix<const float> a,
                          Matrix<const float> b) {
  std::vector<float> c(static_cast<size_t>(size.m * size.n));
  gemm(size, a, b, {c.data(), size.n});
  return c;
}

constexpr Size kSizes[] = {{1, 1, 1}, {5, 7, 3}, {40, 70, 50}, {33, 300, 140}};

}  // namespace

// Step 0.

TEST_CASE("0.1 Bytes that the inner loop of step 0 asks for, and those of their cache lines") {
  const auto asked = [](Size size) { return 4 * size.k; };
  const auto lines = [](Size size) { return 64 * size.k; };  // of rows of 16 floats or more
  CHECK(asked({512, 2048, 2048}) == 8192);
  CHECK(lines({512, 2048, 2048}) == 131072);  // more than any L1 has
}

TEST_CASE("0.2 p outermost: each element adds the same products in the same order") {
  const auto p_outermost = [](Size size, Matrix<const float> a, Matrix<const float> b,
                              Matrix<float> c) {
    for (int64_t p = 0; p < size.k; ++p)
      for (int64_t i = 0; i < size.m; ++i)
        for (int64_t j = 0; j < size.n; ++j) c[i][j] += a[i][p] * b[p][j];
  };
  for (const Size& size : kSizes) {
    const Numbers a(size.m, size.k, 1, true), b(size.k, size.n, 2, true);
    CHECK(result(p_outermost, size, a, b) == result(three_loops, size, a, b));
  }
}

// Step 1.

TEST_CASE("1.1 The other order along rows keeps a row of B near") {
  const auto p_i_j = [](Size size, Matrix<const float> a, Matrix<const float> b, Matrix<float> c) {
    for (int64_t p = 0; p < size.k; ++p) {
      for (int64_t i = 0; i < size.m; ++i) {
        const float x = a[i][p];
        for (int64_t j = 0; j < size.n; ++j) c[i][j] += x * b[p][j];
      }
    }
  };
  for (const Size& size : kSizes) {
    const Numbers a(size.m, size.k, 1, true), b(size.k, size.n, 2, true);
    CHECK(result(p_i_j, size, a, b) == result(loop_order, size, a, b));
  }
}

TEST_CASE("1.2 With B transposed, both operands are rows, but the sum stays one chain") {
  const Size size{40, 70, 50};
  const Numbers a(size.m, size.k, 1, true), b(size.k, size.n, 2, true);
  Numbers bt(size.n, size.k, 0), c(size.m, size.n, 0);
  const Matrix<float> transposed = bt, sums = c;
  const Matrix<const float> left = a, right = b;
  for (int64_t p = 0; p < size.k; ++p)
    for (int64_t j = 0; j < size.n; ++j) transposed[j][p] = right[p][j];
  for (int64_t i = 0; i < size.m; ++i) {
    for (int64_t j = 0; j < size.n; ++j) {
      float sum = 0;  // each addition waits for the one before
      for (int64_t p = 0; p < size.k; ++p) sum += left[i][p] * transposed[j][p];
      sums[i][j] = sum;
    }
  }
  CHECK(c.values == result(three_loops, size, a, b));
}

// Step 2.

TEST_CASE("2.1 Bytes of B from beyond L2, of a B that it does not hold") {
  const auto of_step_1 = [](Size size) { return 4 * size.m * size.k * size.n; };
  const auto of_step_2 = [](Size size) { return 4 * size.k * size.n; };
  CHECK(of_step_1({512, 2048, 2048}) == 512 * of_step_2({512, 2048, 2048}));
}

TEST_CASE(
    "2.2 Blocks of rows: another order of elements, the same order of each element's products") {
  const auto blocks = [](Size size, Matrix<const float> a, Matrix<const float> b, Matrix<float> c) {
    constexpr int64_t mc = 16, nc = 48, kc = 32;
    for (int64_t jc = 0; jc < size.n; jc += nc)
      for (int64_t pc = 0; pc < size.k; pc += kc)
        for (int64_t ic = 0; ic < size.m; ic += mc)
          loop_order(
              {std::min(mc, size.m - ic), std::min(nc, size.n - jc), std::min(kc, size.k - pc)},
              a.from(ic, pc), b.from(pc, jc), c.from(ic, jc));
  };
  for (const Size& size : kSizes) {
    const Numbers a(size.m, size.k, 1), b(size.k, size.n, 2);
    CHECK(result(blocks, size, a, b) == result(cache_blocks, size, a, b));
  }
}

// Step 3.

TEST_CASE("3.1 A transposed A: packed by columns, it needs no other loop") {
  for (const Size& size : kSizes) {
    const Numbers at(size.k, size.m, 1, true), b(size.k, size.n, 2, true);
    Numbers a(size.m, size.k, 0), c(size.m, size.n, 0);
    std::ranges::fill(c.values, 0.0f);
    const Tile<float>& tile = kVectorTile;
    Tile<float> of_columns = tile;  // pack_b packs columns; the tile of A has mr of them
    of_columns.nr = tile.mr;
    std::vector<float> packed_a(static_cast<size_t>(round_up(size.m, tile.mr) * size.k));
    std::vector<float> packed_b(static_cast<size_t>(round_up(size.n, tile.nr) * size.k));
    pack_b<float>(of_columns, size.m, size.k, at, packed_a.data());
    pack_b<float>(tile, size.n, size.k, b, packed_b.data());
    if (!isa_enabled(kVectorIsa)) {
      MESSAGE("skipped: ", why_disabled(kVectorIsa));
      return;
    }
    macro_kernel<float>(tile, size, packed_a.data(), packed_b.data(), c);
    const Matrix<const float> transposed = at;
    const Matrix<float> rows = a;
    for (int64_t i = 0; i < size.m; ++i)
      for (int64_t p = 0; p < size.k; ++p) rows[i][p] = transposed[p][i];
    CHECK(c.values == result(three_loops, size, a, b));
  }
}

TEST_CASE("3.2 The useful share of tiles") {
  const auto useful = [](int64_t m, int64_t mr) {
    return static_cast<double>(m) / static_cast<double>(round_up(m, mr));
  };
  CHECK(useful(49, 6) == doctest::Approx(49.0 / 54));
  CHECK(useful(49, 8) == doctest::Approx(49.0 / 56));
  CHECK(useful(49, 14) == doctest::Approx(49.0 / 56));
  CHECK(useful(16 * 49, 14) == 1);  // which is why images of a batch go together
}

// Step 4.

TEST_CASE(
    "4.1 The tile with the fewest loads for each FMA in 16 registers is 6 rows of 2 vectors") {
  const auto loads = [](int rows, int vectors) {
    return static_cast<double>(rows + vectors) / (rows * vectors);
  };
  int best_rows = 1, best_vectors = 1;
  for (int rows = 1; rows <= 16; ++rows)
    for (int vectors = 1; rows * vectors + vectors + 1 <= 16; ++vectors)
      if (loads(rows, vectors) < loads(best_rows, best_vectors))
        best_rows = rows, best_vectors = vectors;
  CHECK(loads(best_rows, best_vectors) == doctest::Approx(7.0 / 12));  // 4 rows of 3 vectors
  CHECK(loads(6, 2) == doctest::Approx(8.0 / 12));
}

TEST_CASE(
    "4.2 A tile of four rows of three vectors, here of whatever the compiler takes for them") {
  constexpr int kMr = 4, kNr = 24;
  const Tile<float> tile{
      .mr = kMr,
      .nr = kNr,
      .a_step = 1,
      .b_step = 1,
      .run = [](int64_t k, const float* a, const float* b, float* c, int64_t ldc) {
        float sum[kMr][kNr] = {};
        for (int64_t p = 0; p < k; ++p)
          for (int i = 0; i < kMr; ++i)
            for (int j = 0; j < kNr; ++j) sum[i][j] += a[p * kMr + i] * b[p * kNr + j];
        for (int i = 0; i < kMr; ++i)
          for (int j = 0; j < kNr; ++j) c[i * ldc + j] += sum[i][j];
      }};
  for (const Size& size : kSizes) {
    const Numbers a(size.m, size.k, 1, true), b(size.k, size.n, 2, true);
    std::vector<float> c(static_cast<size_t>(size.m * size.n));
    five_loops<float>(tile, size, a, b, {c.data(), size.n});
    CHECK(c == result(three_loops, size, a, b));
  }
}

// Step 5.

TEST_CASE("5.1 How deep a tile has to be for its way to C and back to cost little") {
  // 2·mr·nr elements of C against (mr + nr)·k of operands.
  const auto least_k = [](int64_t mr, int64_t nr) { return ceil_div(10 * 2 * mr * nr, mr + nr); };
  CHECK(least_k(14, 32) == 195);
  CHECK(least_k(6, 16) == 88);
  CHECK(blocks_for(kVectorTile).kc > least_k(kVectorTile.mr, kVectorTile.nr));
}

// Step 6.

TEST_CASE("6.1 f32 to bf16, to the nearest, ties to even") {
  const auto rounded = [](float x) {
    const auto bits = std::bit_cast<uint32_t>(x);
    const uint32_t is_odd = bits >> 16 & 1;  // a tie goes up where that makes the last bit 0
    return static_cast<uint16_t>((bits + 0x7fff + is_odd) >> 16);
  };
  const float most = std::numeric_limits<float>::max();
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float x : {0.0f, -0.0f, 1.0f, 0x1.01p0f, 0x1.03p0f, 0x1.0100002p0f, 0x1.ffp0f,
                        3.14159f, -1e-38f, 1e-40f, most, -most, infinity, -infinity})
    CHECK(rounded(x) == bfloat16(x).bits);
  for (const float x : Numbers(100, 100, 1).values) CHECK(rounded(x) == bfloat16(x).bits);
}

TEST_CASE("6.2 Three products of bf16 come near one of f32") {
  const auto high = [](float x) { return static_cast<float>(bfloat16(x)); };
  // What two terms leave of x is at most 2^-16·|x| (each rounding leaves 2^-8 at most, with its
  // sign), for each factor; lo·lo, which is left out, at most 2^-16; f32 rounds a few times.
  constexpr double kBound = 3 * 0x1p-16 + 4 * 0x1p-24;
  double worst = 0;
  for (const float x : Numbers(20, 20, 1).values) {
    for (const float y : Numbers(20, 20, 2).values) {
      const float x1 = high(x), y1 = high(y), x2 = high(x - x1), y2 = high(y - y1);
      const double exact = static_cast<double>(x) * static_cast<double>(y);
      const double got = static_cast<double>(x1 * y1 + (x1 * y2 + x2 * y1));
      worst = test::larger(worst, std::abs(got - exact) / std::abs(exact));
    }
  }
  CHECK(worst < kBound);
  CHECK(worst < 0x1p-8 / 100);  // one product of bf16 is off by up to 2^-7
}

// Step 7.

TEST_CASE("7.1 Two by two tile registers of C have the fewest loads") {
  const auto loads = [](int a, int b) { return static_cast<double>(a + b) / (a * b); };
  int best_a = 1, best_b = 1;
  for (int a = 1; a <= 8; ++a)
    for (int b = 1; a * b + a + b <= 8; ++b)
      if (loads(a, b) < loads(best_a, best_b)) best_a = a, best_b = b;
  CHECK(best_a == 2);
  CHECK(best_b == 2);
  CHECK(loads(2, 2) == 1);
}

TEST_CASE("7.2 The useful share of tiles of 32×32×32") {
  const auto useful = [](Size size) {
    const auto padded = [](int64_t x) { return round_up(x, 32); };
    return static_cast<double>(size.m * size.n * size.k) /
           static_cast<double>(padded(size.m) * padded(size.n) * padded(size.k));
  };
  CHECK(useful({33, 64, 64}) == doctest::Approx(33.0 / 64));
  CHECK(useful({12544, 64, 147}) == doctest::Approx(147.0 / 160));  // ResNet-50's first layer
}

// Step 8.

TEST_CASE("8.1 A sum that is cut by the number of threads depends on it") {
  const std::vector<float> x = Numbers(1, 10000, 1).values, y = Numbers(1, 10000, 2).values;
  const auto in_pieces = [&](size_t piece) {
    float all = 0;
    for (size_t begin = 0; begin < x.size(); begin += piece) {
      float sum = 0;
      for (size_t i = begin; i < std::min(x.size(), begin + piece); ++i) sum += x[i] * y[i];
      all += sum;
    }
    return all;
  };
  const auto by_threads = [&](size_t threads) { return in_pieces(ceil_div(10000, threads)); };
  const auto by_shape = [&](size_t) { return in_pieces(512); };  // whichever thread does a piece
  CHECK(by_threads(1) != by_threads(2));
  CHECK(by_threads(2) != by_threads(3));
  CHECK(by_shape(1) == by_shape(2));
  CHECK(by_shape(2) == by_shape(3));
}

TEST_CASE("8.2 The share of the time that threads work") {
  const auto busy = [](int64_t cells, int64_t threads) {
    return static_cast<double>(cells) / static_cast<double>(threads * ceil_div(cells, threads));
  };
  CHECK(busy(16, 8) == 1);
  CHECK(busy(16, 3) == doctest::Approx(16.0 / 18));
  const auto good = [&](int64_t cells) {
    for (int64_t threads = 1; threads <= 8; ++threads)
      if (busy(cells, threads) < 0.9) return false;
    return true;
  };
  int64_t fewest = 1;
  while (!good(fewest)) ++fewest;
  CHECK(fewest == 38);
}
