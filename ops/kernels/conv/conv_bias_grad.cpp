#include <vector>

#include "quern/ops/kernels/conv/conv.h"
#include "quern/tensor/dtype.h"
#include "quern/tensor/parallel.h"

namespace quern::kernels {
namespace {

/// Each row of an image is summed in the accumulator's type, rows in f64.
template <class T>
void bias_grad(const ConvProblem& p, const T* dy, Accumulator<T>* db) {
  const ImageStrides s(p.format, p.oc, p.oh, p.ow);
  // Cells of channels that fill some cache lines, so that channels_last reads whole ones.
  parallel_chunks(p.oc, 64, [&](int64_t begin, int64_t end) {
    std::vector<double> sums(static_cast<size_t>(end - begin));
    std::vector<Accumulator<T>> row(sums.size());
    for (int64_t n = 0; n < p.n; ++n) {
      for (int64_t y = 0; y < p.oh; ++y) {
        const T* from = dy + n * s.n + y * s.y;
        std::fill(row.begin(), row.end(), Accumulator<T>{});
        if (s.c == 1) {
          for (int64_t x = 0; x < p.ow; ++x)
            for (int64_t c = begin; c < end; ++c)
              row[static_cast<size_t>(c - begin)] += static_cast<Accumulator<T>>(from[x * s.x + c]);
        } else {
          for (int64_t c = begin; c < end; ++c)
            for (int64_t x = 0; x < p.ow; ++x)
              row[static_cast<size_t>(c - begin)] += static_cast<Accumulator<T>>(from[c * s.c + x]);
        }
        for (size_t c = 0; c < sums.size(); ++c) sums[c] += static_cast<double>(row[c]);
      }
    }
    for (int64_t c = begin; c < end; ++c)
      db[c] = static_cast<Accumulator<T>>(sums[static_cast<size_t>(c - begin)]);
  });
}

}  // namespace

void conv_bias_grad(const ConvProblem& problem, const void* dy, void* db) {
  visit_floating("conv2d", problem.dtype, [&]<class T>(std::type_identity<T>) {
    bias_grad(problem, static_cast<const T*>(dy), static_cast<Accumulator<T>*>(db));
  });
}

}  // namespace quern::kernels
