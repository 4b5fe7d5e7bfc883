// The vector loops under the convolution's packing, on every instruction set, against plain ones.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "quern/ops/kernels/conv/copy_kernel.h"
#include "quern/tensor/cpu_features.h"

using namespace quern;
using namespace quern::kernels;

namespace {

std::vector<const CopyKernel*> enabled() {
  std::vector<const CopyKernel*> kernels{&conv_copy_portable};
#ifdef __x86_64__
  for (const CopyKernel* kernel : {&conv_copy_avx2, &conv_copy_avx512})
    if (isa_enabled(kernel->isa)) kernels.push_back(kernel);
#endif
  return kernels;
}

/// Sizes from nothing to over two squares; src and dst rows with gaps, which must stay as they were.
template <class T>
void check_transpose(Transpose* transpose) {
  for (int64_t rows : {0, 1, 3, 4, 5, 7, 8, 13, 16, 17, 31, 35}) {
    for (int64_t cols : {0, 1, 2, 4, 7, 9, 15, 16, 20, 33}) {
      const int64_t src_stride = rows + 3, dst_stride = cols + 2;
      std::vector<T> src(static_cast<size_t>(cols * src_stride)),
          dst(static_cast<size_t>(rows * dst_stride), T{7});
      std::iota(src.begin(), src.end(), T{100});
      std::vector<T> expected = dst;
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < cols; ++j)
          expected[static_cast<size_t>(i * dst_stride + j)] =
              src[static_cast<size_t>(j * src_stride + i)];
      transpose(src.data(), src_stride, dst.data(), dst_stride, rows, cols);
      CAPTURE(rows);
      CAPTURE(cols);
      CHECK(dst == expected);
    }
  }
}

}  // namespace

TEST_CASE("Copy kernels transpose") {
  for (const CopyKernel* kernel : enabled()) {
    CAPTURE(std::string(kernel->name));
    check_transpose<uint16_t>(kernel->transpose16);
    check_transpose<uint32_t>(kernel->transpose32);
    check_transpose<uint64_t>(kernel->transpose64);
  }
}

TEST_CASE("Copy kernels interleave") {
  for (const CopyKernel* kernel : enabled()) {
    for (int64_t n : {0, 1, 7, 8, 9, 31, 32, 33, 70}) {
      std::vector<uint16_t> a(static_cast<size_t>(n)), b(a), got(2 * a.size() + 1, 9),
          expected(got);
      std::iota(a.begin(), a.end(), uint16_t{1});
      std::iota(b.begin(), b.end(), uint16_t{1001});
      for (size_t i = 0; i < a.size(); ++i) expected[2 * i] = a[i], expected[2 * i + 1] = b[i];
      kernel->interleave16(a.data(), b.data(), n, got.data());
      CHECK(got == expected);
    }
  }
}

TEST_CASE("Copy kernels cut matrices into panels") {
  // The matrix ends where its buffer does; panels have guards between them.
  struct Panels {
    int64_t width, pitch;
  };
  static constexpr Panels kPanels[] = {{14, 16}, {6, 16}, {16, 16}, {32, 32}, {8, 8}, {7, 16}};
  const auto check = []<class T>(void (*cut)(const PanelCopy&), int64_t group, T) {
    for (int64_t rows : {1, 2, 5}) {
      for (int64_t cols : {1, 7, 8, 13, 14, 16, 31, 32, 33, 64, 77}) {
        for (const Panels& panels : kPanels) {
          const auto [width, pitch] = panels;
          CAPTURE(rows);
          CAPTURE(cols);
          CAPTURE(width);
          CAPTURE(pitch);
          const int64_t src_stride = cols + 3, groups = (rows + group - 1) / group;
          const int64_t panel_stride = groups * group * pitch + 5,
                        count = (cols + width - 1) / width;
          std::vector<T> src(static_cast<size_t>((rows - 1) * src_stride + cols));
          std::iota(src.begin(), src.end(), T{100});
          std::vector<T> got(static_cast<size_t>(count * panel_stride), T{7});
          cut({.src = src.data(),
               .src_stride = src_stride,
               .rows = rows,
               .cols = cols,
               .dst = got.data(),
               .panel_stride = panel_stride,
               .width = width,
               .pitch = pitch});
          int64_t wrong = 0;
          for (int64_t panel = 0; panel < count; ++panel) {
            for (int64_t at = 0; at < panel_stride; ++at) {
              const T item = got[static_cast<size_t>(panel * panel_stride + at)];
              if (at >= groups * group * pitch) {
                wrong += item != T{7};
                continue;
              }
              const int64_t i = at / (group * pitch) * group + at % group;
              const int64_t column = at / group % pitch, j = panel * width + column;
              if (column >= width) continue;  // undefined
              const T expected = j >= cols   ? T{7}
                                 : i >= rows ? T{0}
                                             : src[static_cast<size_t>(i * src_stride + j)];
              wrong += item != expected;
            }
          }
          CHECK(wrong == 0);
        }
      }
    }
  };
  for (const CopyKernel* kernel : enabled()) {
    CAPTURE(std::string(kernel->name));
    check(kernel->panels32, 1, uint32_t{});
    check(kernel->pair_panels16, 2, uint16_t{});
  }
}

TEST_CASE("Copy kernels round as bfloat16 does") {
  std::vector<float> values{0.0f,
                            -0.0f,
                            1.0f,
                            1.00390625f,
                            1.01171875f,
                            -1.00390626f,
                            3.4e38f,
                            std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity(),
                            std::nanf(""),
                            std::bit_cast<float>(0x7f800001u)};
  for (int i = 0; i < 40; ++i) values.push_back(std::sin(static_cast<float>(i)) * 1000);
  for (const CopyKernel* kernel : enabled()) {
    for (size_t n : {size_t{1}, size_t{15}, values.size()}) {
      std::vector<bfloat16> got(values.size(), bfloat16(5.0f));
      kernel->round(values.data(), static_cast<int64_t>(n), got.data());
      for (size_t i = 0; i < values.size(); ++i)
        CHECK_EQ(got[i].bits, (i < n ? bfloat16(values[i]) : bfloat16(5.0f)).bits);
    }
  }
}
