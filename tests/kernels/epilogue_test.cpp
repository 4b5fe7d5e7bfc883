// What is done to a tile of sums: every tile kernel, and every micro-kernel that finishes its sums
// itself, against the reference.
//
// Data are small integers and halves of them: all sums are exact in f32, so that results must be
// equal, rounded once for bf16.
#include <doctest/doctest.h>

#include <limits>
#include <vector>

#include "conv_cases.h"
#include "quern/ops/kernels/conv/epilogue/epilogue.h"
#include "quern/tensor/dtype.h"
#include "records.h"

using namespace quern;
using namespace quern::kernels;
using namespace quern::test;
using Kind = Epilogue::Kind;

namespace {

const TileKernel& reference(DType dtype) {
  return named(table<TileKernel>(), fmt::format("conv_tile_{}_reference", dtype));
}

struct Finishing {
  Kind kind;
  bool residual = false;
  Activation activation = Activation::none;  ///< of the sums, or of what the gradient goes through
};
constexpr Finishing kFinishings[] = {{Kind::store},
                                     {Kind::activate},
                                     {Kind::activate, false, Activation::relu},
                                     {Kind::activate, true, Activation::relu},
                                     {Kind::activate, true, Activation::relu6},
                                     {Kind::moments},
                                     {Kind::gradient},
                                     {Kind::gradient, true, Activation::relu},
                                     {Kind::gradient, true, Activation::relu6}};

/// What a tile is finished with, its rows further apart than it is wide.
struct Operands {
  Operands(DType dtype, int64_t m, int64_t n)
      : stride(n + 3),
        out(dtype, std::vector<double>(static_cast<size_t>(m * stride), 77)),
        residual(dtype, integers(m * stride, 1)),
        x(dtype, integers(m * stride, 2)),
        scale(sum_dtype(dtype), halves(n, 3)),
        shift(sum_dtype(dtype), halves(n, 4)),
        center(sum_dtype(dtype), integers(n, 5)),
        first(sum_dtype(dtype), integers(n, 6)),
        second(sum_dtype(dtype), integers(n, 7)) {}

  static std::vector<double> halves(int64_t n, uint32_t seed) {
    std::vector<double> values = integers(n, seed);
    for (double& value : values) value /= 2;
    return values;
  }
  Epilogue epilogue(const Finishing& f, int64_t row = 0) {
    return {.kind = f.kind,
            .activation = f.activation,
            .map = {center.data(), scale.data(), shift.data(), f.activation},
            .residual = f.residual ? residual.at(row * stride) : nullptr,
            .x = x.at(row * stride),
            .first = first.data(),
            .second = second.data(),
            .out = out.at(row * stride),
            .stride = stride};
  }
  void check(Operands& expected) {
    for (auto [got, right] :
         {std::pair{&out, &expected.out}, {&first, &expected.first}, {&second, &expected.second}}) {
      CHECK(got->guarded());
      const std::vector<double> a = got->values(), b = right->values();
      int64_t wrong = 0;
      for (size_t i = 0; i < a.size(); ++i)
        wrong += !(a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i])));
      CHECK(wrong == 0);
    }
  }

  int64_t stride;
  Buffer out, residual, x, scale, shift, center, first, second;
};

/// Tiles of n columns. Tensors are of `dtype`, the operands' or the sums'.
void check_finishing(const GemmKernel& gemm, DType dtype, int64_t n) {
  const int64_t k = 3 * gemm.k_multiple, most = 3;
  Buffer a(gemm.a, integers(most * gemm.mr * k, 9)), b(gemm.b, integers(k * gemm.nr, 10));
  const void *a_rows = a.data(), *panel = b.data();
  std::vector<Finishing> finishings(std::begin(kFinishings), std::end(kFinishings));
  finishings.push_back({Kind::activate, true, Activation::hardswish});
  for (const Finishing& f : finishings) {
    // Hardswish rounds as on vectors, whose roundings another test holds to f64.
    const TileKernel& oracle =
        f.activation == Activation::hardswish
            ? named(table<TileKernel>(), fmt::format("conv_tile_{}_avx512", dtype))
            : reference(dtype);
    a.set(0, f.kind == Kind::activate ? std::numeric_limits<double>::quiet_NaN() : 1);
    for (int64_t m = 1; m <= gemm.mr; ++m) {
      for (int64_t tiles : {int64_t{1}, most}) {
        for (bool accumulate : {false, true}) {
          INFO(std::string(gemm.name), " ", dtype, " kind ", static_cast<int>(f.kind), " m ", m,
               " n ", n, " tiles ", tiles, accumulate ? " accumulate" : "");
          const int64_t rows = tiles * m;
          Buffer c(gemm.c, integers(rows * n, 11));
          GemmTile tile{.tiles = tiles,
                        .m = m,
                        .n = n,
                        .k = k,
                        .batch = 1,
                        .a = &a_rows,
                        .lda = k,
                        .b = &panel,
                        .c = c.data(),
                        .ldc = n,
                        .accumulate = accumulate};
          const std::vector<double> before = c.values();
          Operands got(dtype, rows, n), expected(dtype, rows, n);
          Epilogue epilogue = got.epilogue(f);
          epilogue.wide = dtype != gemm.a;
          tile.epilogue = &epilogue;
          gemm.run(tile);
          CHECK(c.values() == before);
          tile.epilogue = nullptr;
          gemm.run(tile);
          oracle.run({.sums = c.data(), .stride = n, .m = rows, .n = n}, expected.epilogue(f));
          got.check(expected);
        }
      }
    }
  }
}

/// Columns that tiles have: all, and around the half, which may have loops of its own.
std::vector<int64_t> widths(const GemmKernel& gemm) {
  const int64_t nr = gemm.nr;
  return {1, nr / 2 - 1, nr / 2, nr / 2 + 1, nr - 1, nr};
}

}  // namespace

TEST_CASE("Tiles are finished with smooth activations as closely as their roundings allow") {
  constexpr int64_t m = 5, n = 37;
  test::each_runnable(table<TileKernel>(), [](const TileKernel& kernel) {
    CAPTURE(std::string(kernel.name));
    for (const Activation activation : {Activation::silu, Activation::hardswish})
      for (const Kind kind : {Kind::activate, Kind::gradient}) {
        const Finishing f{kind, true, activation};
        std::vector<double> values = integers(m * n, 12);
        for (double& v : values) v /= 4;
        Buffer sums(sum_dtype(kernel.dtype), values), exact_sums(DType::f64, values);
        Operands got(kernel.dtype, m, n), exact(DType::f64, m, n);
        kernel.run({.sums = sums.data(), .stride = n, .m = m, .n = n}, got.epilogue(f));
        reference(DType::f64)
            .run({.sums = exact_sums.data(), .stride = n, .m = m, .n = n}, exact.epilogue(f));
        // What is summed and normalised is exact; then exp within 2, and at most 8 roundings of
        // what is no larger than 4 times the value itself.
        const double u = kernel.dtype == DType::f64 ? 0x1p-52 : kRoundoff;
        const double rounding = kernel.dtype == DType::bf16 ? 0x1p-8 : 0;
        for (int64_t i = 0; i < m; ++i)
          for (int64_t j = 0; j < n; ++j) {
            const double a = got.out[i * got.stride + j], b = exact.out[i * exact.stride + j];
            CHECK(std::abs(a - b) <= 40 * u * (std::abs(b) + 16) + rounding * std::abs(b));
          }
        for (int64_t j = 0; j < n && kind == Kind::gradient; ++j) {
          CHECK(std::abs(got.first[j] - exact.first[j]) <= m * 40 * u * 64);
          CHECK(std::abs(got.second[j] - exact.second[j]) <= m * 40 * u * 640);
        }
      }
  });
}

TEST_CASE("Tile kernels complete sums as the reference does") {
  each_runnable(table<TileKernel>(), [](const TileKernel& kernel) {
    for (const Finishing& f : kFinishings) {
      for (int64_t m : {1, 2, 13}) {
        for (int64_t n : {1, 7, 16, 32, 45}) {
          INFO(std::string(kernel.name), " kind ", static_cast<int>(f.kind), " m ", m, " n ", n);
          Buffer sums(sum_dtype(kernel.dtype), integers(m * (n + 1), 8));
          if (f.kind == Kind::activate) sums.set(0, std::numeric_limits<double>::quiet_NaN());
          const SumTile tile{.sums = sums.data(), .stride = n + 1, .m = m, .n = n};
          Operands got(kernel.dtype, m, n), expected(kernel.dtype, m, n);
          kernel.run(tile, got.epilogue(f));
          reference(kernel.dtype).run(tile, expected.epilogue(f));
          got.check(expected);
        }
      }
    }
  });
}

TEST_CASE("Micro-kernels complete their sums as the reference does") {
  int finishing = 0;
  each_runnable(table<GemmKernel>(), [&](const GemmKernel& gemm) {
    if (!gemm.takes_epilogues) return;
    ++finishing;
    for (int64_t n : widths(gemm)) {
      check_finishing(gemm, gemm.a, n);
      if (gemm.c != gemm.a) check_finishing(gemm, gemm.c, n);
    }
  });
  if (test::is_built(Isa::avx512)) CHECK(finishing > 0);
}
