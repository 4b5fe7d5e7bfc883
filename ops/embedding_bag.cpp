#include "quern/ops/embedding_bag.h"

#include <vector>

#include "quern/autograd/node.h"
#include "quern/ops/detail/lookup.h"
#include "quern/ops/detail/row_groups.h"
#include "quern/ops/kernels/accumulator.h"
#include "quern/ops/kernels/lookup/lookup.h"
#include "quern/tensor/parallel.h"
#include "quern/tensor/raw.h"
#include "quern/tensor/span.h"

namespace quern {
namespace {

constexpr int64_t kGrain = 64;  // bags or places of a cell

/// What is looked up, without padding: row rows[i] for bag bag[i], times weight[i].
struct Bags {
  Tensor rows;     // i64 [n]
  Tensor offsets;  // i64 [B + 1]
  Tensor bag;      // i64 [n]
  Tensor place;    // i64 [n], among the indices as they were given
  Tensor weight;   // [n], in the type that is summed in; undefined: 1
  int64_t count() const { return offsets.numel() - 1; }
};

/// The beginnings of the bags, and their end.
std::vector<int64_t> bounds_of(const Tensor& indices, const Tensor& offsets, bool includes_last) {
  const int64_t n = indices.numel();
  std::vector<int64_t> bounds;
  if (indices.dim() == 2) {
    check(!offsets.defined(), "embedding_bag", "offsets: expected none for indices {}, got {}",
          indices, offsets);
    for (int64_t b = 0; b <= indices.size(0); ++b) bounds.push_back(b * indices.size(1));
    return bounds;
  }
  check(indices.dim() == 1, "embedding_bag", "indices: expected one or two dimensions, got {}",
        indices);
  check(offsets.defined() && offsets.dtype() == DType::i64 && offsets.dim() == 1, "embedding_bag",
        "offsets: expected an i64 tensor [B], got {}", offsets);
  bounds = offsets.to_vector<int64_t>();
  check(!includes_last || (!bounds.empty() && bounds.back() == n), "embedding_bag",
        "offsets: expected {} as the last one, got {}", n, offsets);
  if (!includes_last) bounds.push_back(n);
  for (size_t b = 0; b < bounds.size(); ++b) {
    const int64_t least = b == 0 ? 0 : bounds[b - 1], most = b == 0 ? 0 : n;
    check(bounds[b] >= least && bounds[b] <= most, "embedding_bag",
          "offsets: expected {}..{}, got {} as element {}", least, most, bounds[b], b);
  }
  return bounds;
}

template <class Sum>
Bags bags_of(const Tensor& indices, const std::vector<int64_t>& bounds,
             std::optional<int64_t> padding, const EmbeddingBagOptions& options) {
  const Tensor &given = options.per_sample_weights, rows = empty({indices.numel()}, DType::i64);
  const Tensor bag = empty_like(rows), place = empty_like(rows);
  const Tensor offsets = empty({static_cast<int64_t>(bounds.size())}, DType::i64);
  const int64_t* row = indices.data<int64_t>();
  int64_t n = 0;
  for (size_t b = 0; b < bounds.size(); ++b) {
    offsets.out<int64_t>()[b] = n;
    for (int64_t i = bounds[b]; b + 1 < bounds.size() && i < bounds[b + 1]; ++i) {
      if (row[i] == padding) continue;
      rows.out<int64_t>()[n] = row[i];
      bag.out<int64_t>()[n] = static_cast<int64_t>(b);
      place.out<int64_t>()[n++] = i;
    }
  }
  const auto kept = [n](const Tensor& t) { return raw::slice(t, 0, 0, n); };
  Bags bags{kept(rows), offsets, kept(bag), kept(place), {}};
  if (options.mode != BagMode::mean && !given.defined()) return bags;
  bags.weight = empty({n}, dtype_of<Sum>);
  const std::vector<Sum> weights = given.defined() ? given.to_vector<Sum>() : std::vector<Sum>();
  for (int64_t i = 0; i < n; ++i) {
    const int64_t b = bag.data<int64_t>()[i], *begin = offsets.data<int64_t>() + b;
    bags.weight.out<Sum>()[i] = given.defined()
                                    ? weights[static_cast<size_t>(place.data<int64_t>()[i])]
                                    : 1 / static_cast<Sum>(begin[1] - begin[0]);
  }
  return bags;
}

Tensor summed(const Bags& bags, const Tensor& table) {
  Tensor y = empty({bags.count(), table.size(1)}, table.dtype());
  kernels::segment_sum(kernels::select_segment_sum(table.dtype(), table.dtype()),
                       {.from = table.data_ptr(),
                        .from_stride = table.stride(0),
                        .index = bags.rows.data<int64_t>(),
                        .weight = bags.weight.defined() ? bags.weight.data_ptr() : nullptr,
                        .offsets = bags.offsets.data<int64_t>(),
                        .segments = bags.count(),
                        .to = y.out_ptr(),
                        .to_stride = y.size(1),
                        .width = y.size(1)});
  return y;
}

/// `from`: i64 [B, D], the row that each maximum is of; -1 in an empty bag.
Tensor maximal(const Bags& bags, const Tensor& table, const Tensor& from) {
  const int64_t width = table.size(1);
  Tensor y = zeros({bags.count(), width}, table.dtype());
  raw::fill_(from, -1);
  const int64_t *row = bags.rows.data<int64_t>(), *offset = bags.offsets.data<int64_t>();
  visit_floating("embedding_bag", table.dtype(), [&]<class T>(std::type_identity<T>) {
    using Value = std::conditional_t<std::is_same_v<T, bfloat16>, float, T>;
    parallel_chunks(bags.count(), kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) {
        T* const most = y.out<T>() + b * width;
        int64_t* const of = from.out<int64_t>() + b * width;
        for (int64_t j = offset[b]; j < offset[b + 1]; ++j) {
          const T* const x = table.data<T>() + row[j] * table.stride(0);
          for (int64_t c = 0; c < width; ++c) {
            const auto now = static_cast<Value>(x[c]), best = static_cast<Value>(most[c]);
            if (j == offset[b] || now > best || (now != now && best == best))
              most[c] = x[c], of[c] = row[j];
          }
        }
      }
    });
  });
  return y;
}

/// dweight[from[b, c], c] += dy[b, c], bag after bag; a column has one thread.
Tensor maximal_backward(const Tensor& dy, const Tensor& from, int64_t rows) {
  const DType sums = accumulator(dy.dtype());
  const Tensor dense = raw::contiguous(dy);
  const int64_t width = dy.size(1), bags = dy.size(0), *row = from.data<int64_t>();
  Tensor dweight = zeros({rows, width}, sums);
  visit_floating("embedding_bag", dy.dtype(), [&]<class T>(std::type_identity<T>) {
    using Sum = kernels::Accumulator<T>;
    parallel_chunks(width, 16, [&](int64_t begin, int64_t end) {
      for (int64_t b = 0; b < bags; ++b)
        for (int64_t c = begin; c < end; ++c)
          if (const int64_t r = row[b * width + c]; r >= 0)
            dweight.out<Sum>()[r * width + c] += static_cast<Sum>(dense.data<T>()[b * width + c]);
    });
  });
  return dweight;
}

/// The gradient of the weight of place i, Σ dy[bag, :] · table[row, :]; 0 for padding.
Tensor sample_weights_backward(const Bags& bags, const Tensor& dy, const Tensor& table,
                               const Shape& shape) {
  const int64_t width = dy.size(1);
  Tensor dweights = zeros({numel(shape)}, accumulator(dy.dtype()));
  const Tensor dense = raw::contiguous(dy);
  visit_floating("embedding_bag", dy.dtype(), [&]<class T>(std::type_identity<T>) {
    using Sum = kernels::Accumulator<T>;
    parallel_chunks(bags.rows.numel(), kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const T* const x = table.data<T>() + bags.rows.data<int64_t>()[i] * table.stride(0);
        const T* const d = dense.data<T>() + bags.bag.data<int64_t>()[i] * width;
        Sum sum = 0;
        for (int64_t c = 0; c < width; ++c) sum += static_cast<Sum>(x[c]) * static_cast<Sum>(d[c]);
        dweights.out<Sum>()[bags.place.data<int64_t>()[i]] = sum;
      }
    });
  });
  return raw::reshape(dweights, shape);
}

}  // namespace

Tensor embedding_bag(const Tensor& indices, const Tensor& weight, const Tensor& offsets,
                     const EmbeddingBagOptions& options) {
  const auto padding = detail::check_table("embedding_bag", weight,
                                           {.padding_idx = options.padding_idx,
                                            .max_norm = options.max_norm,
                                            .norm_type = options.norm_type});
  const int64_t rows = weight.size(0), columns = weight.size(1);
  const Tensor dense = detail::check_indices("embedding_bag", indices, rows);
  const std::vector<int64_t> bounds = bounds_of(indices, offsets, options.include_last_offset);
  const Tensor& samples = options.per_sample_weights;
  const bool maximum = options.mode == BagMode::max;
  check(!samples.defined() || options.mode == BagMode::sum, "embedding_bag",
        "per_sample_weights: expected none but for sums");
  check(!samples.defined() ||
            (samples.shape() == indices.shape() && samples.dtype() == weight.dtype()),
        "embedding_bag", "per_sample_weights: expected {} {}, got {}", weight.dtype(),
        indices.shape(), samples);
  check(!maximum || !options.sparse, "embedding_bag", "sparse: expected false for maxima");
  check(!maximum || !options.scale_grad_by_freq, "embedding_bag",
        "scale_grad_by_freq: expected false for maxima");
  const Span span("embedding_bag");
  const Bags bags = weight.dtype() == DType::f64 ? bags_of<double>(dense, bounds, padding, options)
                                                 : bags_of<float>(dense, bounds, padding, options);
  if (options.max_norm)
    detail::renorm_rows_(weight, bags.rows, *options.max_norm, options.norm_type);
  const Tensor table =
      columns == 1 || weight.stride(1) == 1 ? raw::alias(weight) : raw::contiguous(weight);
  const Tensor from = maximum ? empty({bags.count(), columns}, DType::i64) : Tensor();
  const Tensor y = maximum ? maximal(bags, table, from) : summed(bags, table);

  return record("embedding_bag", y, {weight, samples},
                [=, bags = bags, shape = indices.shape(), scales = options.scale_grad_by_freq,
                 sparse = options.sparse,
                 table = SavedTensor("embedding_bag", samples.defined() ? table : Tensor())](
                    const Tensor& dy, Needs needs) -> Tensors {
                  Tensors grads(2);
                  if (needs[1]) grads[1] = sample_weights_backward(bags, dy, table.get(), shape);
                  if (needs[0] && maximum) grads[0] = maximal_backward(dy, from, rows);
                  else if (needs[0])
                    grads[0] = detail::table_gradient({.indices = bags.rows,
                                                       .dy = dy,
                                                       .source = bags.bag,
                                                       .weight = bags.weight,
                                                       .rows = rows,
                                                       .padding = {},
                                                       .scale_by_freq = scales,
                                                       .sparse = sparse});
                  return grads;
                });
}

}  // namespace quern
