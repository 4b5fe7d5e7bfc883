#include "quern/nn/image_resize.h"

#include <algorithm>
#include <cmath>

#include "quern/ops/kernels/image/resample.h"

namespace quern::image {
Axis make_axis(int64_t size, double start, double length, int64_t resized, int64_t first,
               int64_t count) {
  const double scale = length / static_cast<double>(resized), reach = std::max(scale, 1.0);
  Axis axis;
  axis.taps = static_cast<int64_t>(std::ceil(reach)) * 2 + 1;
  axis.weights.resize(static_cast<size_t>(count * axis.taps));
  std::vector<double> weights(static_cast<size_t>(axis.taps));
  for (int64_t i = 0; i < count; ++i) {
    const double center = start + (static_cast<double>(first + i) + 0.5) * scale;
    const auto begin = std::max<int64_t>(static_cast<int64_t>(center - reach + 0.5), 0);
    const auto end = std::min<int64_t>(static_cast<int64_t>(center + reach + 0.5), size);
    double sum = 0;
    for (int64_t k = 0; k < end - begin; ++k) {
      const double distance = (static_cast<double>(begin + k) - center + 0.5) * (1 / reach);
      sum += weights[k] = std::max(0.0, 1 - std::abs(distance));
    }
    for (int64_t k = 0; k < end - begin; ++k)
      axis.weights[i * axis.taps + k] = static_cast<int32_t>(
          0.5 + (sum != 0 ? weights[k] / sum : 0) * (1 << kernels::kResampleBits));
    axis.begin.push_back(begin), axis.count.push_back(end - begin);
  }
  return axis;
}

void resize(const uint8_t* in, int64_t in_width, const Axis& rows, const Axis& columns, bool flip,
            uint8_t* out) {
  const kernels::ResampleKernel& kernel = kernels::select_resample_kernel();
  std::vector<int64_t> begin(columns.begin);
  for (int64_t& first : begin) first -= columns.first();
  const kernels::ResampleAxis axis{columns.size(), columns.taps, begin.data(), columns.count.data(),
                                   columns.weights.data()};
  const int64_t in_rows = rows.last() - rows.first(), values = 3 * columns.size();
  const int64_t in_values = 3 * (columns.last() - columns.first());

  std::vector<uint8_t> narrow(static_cast<size_t>(in_rows * values + 1));
  std::vector<uint8_t> last(in + (in_rows - 1) * in_width * 3,
                            in + (in_rows - 1) * in_width * 3 + in_values);
  last.push_back(0);  // a kernel may read the byte that follows
  for (int64_t y = 0; y < in_rows; ++y)
    kernel.along(y == in_rows - 1 ? last.data() : in + y * in_width * 3, axis, flip,
                 narrow.data() + y * values);
  for (int64_t y = 0; y < rows.size(); ++y)
    kernel.down(narrow.data() + (rows.begin[y] - rows.first()) * values, values,
                rows.weights.data() + y * rows.taps, rows.count[y], values, out + y * values);
}

}  // namespace quern::image
