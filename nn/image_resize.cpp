#include "quern/nn/image_resize.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace quern::image {
namespace {

constexpr int32_t kHalf = 1 << (kWeightBits - 1);
constexpr int64_t kLanes = 4;  // a pixel is three; the fourth is whatever follows

uint8_t rounded(int32_t sum) {
  return static_cast<uint8_t>(std::clamp(sum >> kWeightBits, 0, 255));
}

/// Along a row: in, of one lane more than it has values, to out, likewise.
void resize_along(const int32_t* in, const Axis& columns, bool flip, uint8_t* out) {
  const int64_t n = columns.size(), first = columns.first();
  for (int64_t x = 0; x < n; ++x) {
    const int64_t i = flip ? n - 1 - x : x;
    const int32_t* pixel = in + 3 * (columns.begin[i] - first);
    const int32_t* weight = columns.weights.data() + i * columns.taps;
    int32_t sum[kLanes] = {kHalf, kHalf, kHalf, kHalf};
    for (int64_t k = 0; k < columns.count[i]; ++k, pixel += 3)
      for (int64_t c = 0; c < kLanes; ++c) sum[c] += weight[k] * pixel[c];
    for (int64_t c = 0; c < kLanes; ++c) out[3 * x + c] = rounded(sum[c]);
  }
}

/// Row y of `rows`: sums[i], i < values, of in's rows, which are `step` apart.
void resize_down(const uint8_t* in, int64_t step, int64_t values, const Axis& rows, int64_t y,
                 int32_t* sums) {
  std::fill_n(sums, values, kHalf);
  const uint8_t* row = in + (rows.begin[y] - rows.first()) * step;
  for (int64_t k = 0; k < rows.count[y]; ++k, row += step) {
    const int32_t weight = rows.weights[y * rows.taps + k];
    for (int64_t i = 0; i < values; ++i) sums[i] += weight * row[i];
  }
}

}  // namespace

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
      axis.weights[i * axis.taps + k] =
          static_cast<int32_t>(0.5 + (sum != 0 ? weights[k] / sum : 0) * (1 << kWeightBits));
    axis.begin.push_back(begin), axis.count.push_back(end - begin);
  }
  return axis;
}

void resize(const uint8_t* in, int64_t in_width, const Axis& rows, const Axis& columns, bool flip,
            uint8_t* out) {
  const int64_t in_rows = rows.last() - rows.first(), values = 3 * columns.size();
  const int64_t in_values = 3 * (columns.last() - columns.first());
  std::vector<int32_t> row(static_cast<size_t>(std::max(in_values, values) + 1));
  std::vector<uint8_t> narrow(static_cast<size_t>(in_rows * values + 1));
  for (int64_t y = 0; y < in_rows; ++y) {
    std::copy_n(in + y * in_width * 3, in_values, row.data());
    resize_along(row.data(), columns, flip, narrow.data() + y * values);
  }
  for (int64_t y = 0; y < rows.size(); ++y, out += values) {
    resize_down(narrow.data(), values, values, rows, y, row.data());
    std::transform(row.begin(), row.begin() + values, out, rounded);
  }
}

}  // namespace quern::image
