#include "quern/ops/detail/lookup.h"

#include <algorithm>
#include <cmath>

#include "quern/ops/detail/row_groups.h"
#include "quern/ops/kernels/accumulator.h"
#include "quern/ops/kernels/lookup/lookup.h"
#include "quern/tensor/check_dense.h"
#include "quern/tensor/parallel.h"
#include "quern/tensor/raw.h"

namespace quern::detail {
namespace {

constexpr int64_t kGrain = 1 << 12;

/// out[j] = in[places[j]]
template <class T>
Tensor picked(const Tensor& in, const Tensor& places) {
  const Tensor out = empty(places.shape(), in.dtype());
  const T* from = in.data<T>();
  const int64_t* place = places.data<int64_t>();
  T* to = out.out<T>();
  parallel_chunks(places.numel(), kGrain, [=](int64_t begin, int64_t end) {
    for (int64_t j = begin; j < end; ++j) to[j] = from[place[j]];
  });
  return out;
}

/// By place: the weights, each divided by how many places its row has.
template <class Sum>
Tensor weights_of(const TableGrad& grad, const RowGroups& groups) {
  if (!grad.weight.defined() && !grad.scale_by_freq) return {};
  const Tensor weights = grad.weight.defined()
                             ? picked<Sum>(raw::contiguous(grad.weight), groups.places)
                             : full(groups.places.shape(), 1, dtype_of<Sum>);
  if (!grad.scale_by_freq) return weights;
  const int64_t* offset = groups.offsets.data<int64_t>();
  Sum* weight = weights.out<Sum>();
  for (int64_t s = 0; s < groups.rows.numel(); ++s)
    for (int64_t j = offset[s]; j < offset[s + 1]; ++j)
      weight[j] /= static_cast<Sum>(offset[s + 1] - offset[s]);
  return weights;
}

template <class T>
T norm_of(const T* x, int64_t n, double p) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double size = std::abs(static_cast<double>(x[i]));
    if (std::isinf(p)) sum = std::isnan(size) ? size : std::max(sum, size);
    else sum += p == 2 ? size * size : p == 1 ? size : std::pow(size, p);
  }
  return static_cast<T>(std::isinf(p) || p == 1 ? sum
                        : p == 2                ? std::sqrt(sum)
                                                : std::pow(sum, 1 / p));
}

}  // namespace

std::optional<int64_t> check_table(std::string_view op, const Tensor& weight,
                                   const EmbeddingOptions& options) {
  check(weight.defined() && weight.dim() == 2 && is_floating(weight.dtype()), op,
        "weight: expected a floating tensor [V, D], got {}", weight);
  check_dense(op, "weight", weight);
  const int64_t rows = weight.size(0);
  check(!options.max_norm || *options.max_norm >= 0, op, "max_norm: expected at least 0, got {}",
        options.max_norm.value_or(0));
  check(options.norm_type > 0, op, "norm_type: expected more than 0, got {}", options.norm_type);
  if (!options.padding_idx) return {};
  const int64_t padding = *options.padding_idx;
  check(padding >= -rows && padding < rows, op, "padding_idx: expected {}..{}, got {}", -rows,
        rows - 1, padding);
  return padding < 0 ? padding + rows : padding;
}

void renorm_rows_(const Tensor& table, const Tensor& indices, double max_norm, double p) {
  const Tensor rows = group_rows(indices, table.size(0)).rows;
  const int64_t width = table.size(1), n = rows.numel();
  const int64_t step = table.stride(0), stride = table.stride(1);
  const InPlaceChange change(table.storage());
  visit_floating("embedding", table.dtype(), [&]<class T>(std::type_identity<T>) {
    using Sum = kernels::Accumulator<T>;
    parallel_chunks(n, 16, [&](int64_t begin, int64_t end) {
      std::vector<Sum> row(static_cast<size_t>(width));
      for (int64_t i = begin; i < end; ++i) {
        T* const x = table.out<T>() + rows.data<int64_t>()[i] * step;
        for (int64_t c = 0; c < width; ++c)
          row[static_cast<size_t>(c)] = static_cast<Sum>(x[c * stride]);
        const Sum norm = norm_of(row.data(), width, p);
        if (!(norm > static_cast<Sum>(max_norm))) continue;
        const Sum scale = static_cast<Sum>(max_norm) / (norm + static_cast<Sum>(1e-7));
        for (int64_t c = 0; c < width; ++c)
          x[c * stride] = static_cast<T>(row[static_cast<size_t>(c)] * scale);
      }
    });
  });
}

Tensor table_gradient(const TableGrad& grad) {
  const RowGroups groups = group_rows(grad.indices, grad.rows);
  const int64_t width = grad.dy.size(1), all = groups.rows.numel();
  const DType sums = accumulator(grad.dy.dtype());
  const Tensor dy = raw::contiguous(grad.dy);
  const Tensor source =
      grad.source.defined() ? picked<int64_t>(grad.source, groups.places) : groups.places;
  const Tensor weights =
      sums == DType::f64 ? weights_of<double>(grad, groups) : weights_of<float>(grad, groups);

  // Rows [begin, end) of the groups, as rows `at` and on of `to`, or as those they are.
  const auto sum_into = [&](const Tensor& to, int64_t begin, int64_t end, int64_t at, bool placed) {
    kernels::segment_sum(kernels::select_segment_sum(dy.dtype(), sums),
                         {.from = dy.data_ptr(),
                          .from_stride = width,
                          .index = source.data<int64_t>(),
                          .weight = weights.defined() ? weights.data_ptr() : nullptr,
                          .offsets = groups.offsets.data<int64_t>() + begin,
                          .segments = end - begin,
                          .to = raw::slice(to, 0, at, to.size(0)).out_ptr(),
                          .to_stride = width,
                          .to_index = placed ? groups.rows.data<int64_t>() + begin : nullptr,
                          .width = width});
  };
  const int64_t* row = groups.rows.data<int64_t>();
  const int64_t skipped =
      grad.padding ? std::lower_bound(row, row + all, *grad.padding) - row : all;
  const bool skips = skipped < all && row[skipped] == *grad.padding;
  const int64_t next = skips ? skipped + 1 : skipped;
  if (!grad.sparse) {
    const Tensor dense = zeros({grad.rows, width}, sums);
    sum_into(dense, 0, skipped, 0, true);
    sum_into(dense, next, all, 0, true);
    return dense;
  }
  const Tensor values = empty({all - skips, width}, sums), rows = empty({all - skips}, DType::i64);
  sum_into(values, 0, skipped, 0, false);
  sum_into(values, next, all, skipped, false);
  std::copy(row + next, row + all, std::copy_n(row, skipped, rows.out<int64_t>()));
  return sparse_rows(rows, values, grad.rows);
}

}  // namespace quern::detail
