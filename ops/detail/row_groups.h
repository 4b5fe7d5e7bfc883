// Lists of row numbers: their checks, and which places name which row.
#pragma once
#include <string_view>

#include "quern/tensor/tensor.h"

namespace quern::detail {

/// Error of `op`: `indices` is not i64, or an element is outside of 0..rows-1. Returns it contiguous.
Tensor check_indices(std::string_view op, const Tensor& indices, int64_t rows);

/// The places of a list by the row they name: row rows[s] is named by places[offsets[s]] ...
/// places[offsets[s+1]-1], in rising order. All i64.
struct RowGroups {
  Tensor rows;     // [u], rising
  Tensor offsets;  // [u + 1]
  Tensor places;   // [n]
};
/// Of contiguous indices within 0..rows-1. By radix: takes time and memory by the list's length, and
/// gives the same on any number of threads.
RowGroups group_rows(const Tensor& indices, int64_t rows);
/// The same of those indices, rows in the order of their first places: who walks them walks the list.
RowGroups in_order_of_list(const RowGroups& groups, const Tensor& indices);

}  // namespace quern::detail
