// GEMM: micro-kernels out of the first-level cache, and the driver at the sizes of shapes/gemm.txt.
#include "quern/ops/kernels/gemm/gemm.h"

#include <algorithm>
#include <cstdio>

#include "quern/ops/kernels/gemm/micro_kernel.h"
#include "suite.h"

namespace quern::bench {
namespace {

using namespace kernels;

struct Size {
  int64_t m, n, k;
  double flop() const { return 2 * static_cast<double>(m) * static_cast<double>(n * k); }
  double bytes(const GemmKernel& kernel) const {
    return static_cast<double>((m * k + k * n) * itemsize(kernel.a) + m * n * itemsize(kernel.c));
  }
  std::string name() const { return fmt::format("m{}n{}k{}", m, n, k); }
};

/// C = A·B of row-major integers.
class Product : public Case {
 protected:
  Product(const GemmKernel& kernel, Size size)
      : kernel_(kernel),
        size_(size),
        a_(integers(kernel.a, size.m * size.k)),
        b_(integers(kernel.b, size.k * size.n)),
        c_(result(kernel.c, size.m * size.n)) {}

  std::string wrong() override {
    return compare_exactly(c_, [&](int64_t at) {
      const int64_t i = at / size_.n, j = at % size_.n;
      double sum = 0;
      for (int64_t p = 0; p < size_.k; ++p) sum += a_[i * size_.k + p] * b_[p * size_.n + j];
      return sum;
    });
  }

  const GemmKernel& kernel_;
  Size size_;
  Operand &a_, &b_, &c_;
};

class TileCase : public Product {
 public:
  TileCase(const GemmKernel& kernel, Size size)
      : Product(kernel, size), panel_(result(kernel.b, panel_elements(kernel, size.k))) {
    pack_gemm_b(kernel, {b_.data(), size.n, 1}, size.k, size.n, panel_.data());
    a_pointer_ = a_.data(), b_pointer_ = panel_.data();
  }
  void run() override {
    kernel_.run({.m = size_.m,
                 .n = size_.n,
                 .k = size_.k,
                 .batch = 1,
                 .a = &a_pointer_,
                 .lda = size_.k,
                 .b = &b_pointer_,
                 .c = c_.data(),
                 .ldc = size_.n,
                 .accumulate = false});
  }

 private:
  Operand& panel_;
  const void *a_pointer_, *b_pointer_;
};

class DriverCase : public Product {
 public:
  DriverCase(const GemmKernel& kernel, Size size, bool packed) : Product(kernel, size) {
    problem_ = {.m = size.m,
                .n = size.n,
                .k = size.k,
                .a = {a_.data(), size.k, 1},
                .b = {b_.data(), size.n, 1},
                .c = c_.data(),
                .c_dtype = kernel.c,
                .c_row_stride = size.n};
    if (packed) {
      Operand& panels = result(DType::u8, packed_b_bytes(kernel, size.k, size.n));
      pack_gemm_b(kernel, problem_.b, size.k, size.n, panels.data());
      problem_.packed_b = panels.data();
    }
  }
  void run() override { gemm(kernel_, problem_); }

 private:
  GemmProblem problem_;
};

/// A full tile whose A and B take half of the first-level cache.
Size tile_size(const GemmKernel& kernel) {
  const int64_t k = cache_sizes().l1d / 2 / ((kernel.mr + kernel.nr) * itemsize(kernel.a));
  const int64_t step = kernel.k_multiple;
  return {kernel.mr, kernel.nr, std::max(k / step * step, step)};
}

Size parse_size(const std::string& line) {
  Size s{};
  check(std::sscanf(line.c_str(), "m%ldn%ldk%ld", &s.m, &s.n, &s.k) == 3, "bench",
        "shapes: expected m..n..k.., got {}", line);
  return s;
}

}  // namespace

void add_gemm(const Options& options, Benchmarks& benchmarks) {
  const auto each_kernel = [&](auto f) {
    for (DType dtype : options.dtypes)
      each_wanted(
          options, table<GemmKernel>(), select_gemm_kernel(dtype),
          [&](const GemmKernel& kernel) { return kernel.a == dtype; }, f);
  };
  each_kernel([&](const GemmKernel& kernel) {
    const Size s = tile_size(kernel);
    benchmarks.push_back({.name = fmt::format("gemm_tile/{}/{}", kernel.name, s.name()),
                          .dtype = kernel.a,
                          .flop = s.flop(),
                          .bytes = s.bytes(kernel),
                          .make = [&kernel, s] { return std::make_unique<TileCase>(kernel, s); },
                          .one_thread = true});
  });
  for (bool packed : {true, false})
    each_kernel([&](const GemmKernel& kernel) {
      for (const std::string& line : read_shapes(options.gemm_shapes)) {
        const Size s = parse_size(line);
        benchmarks.push_back({.name = fmt::format("{}/{}/{}", packed ? "gemm_packed" : "gemm",
                                                  kernel.name, s.name()),
                              .dtype = kernel.a,
                              .flop = s.flop(),
                              .bytes = s.bytes(kernel),
                              .make = [&kernel, s, packed] {
                                return std::make_unique<DriverCase>(kernel, s, packed);
                              }});
      }
    });
}

}  // namespace quern::bench
