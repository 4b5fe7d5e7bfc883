// Lists of row numbers: their checks, and which places name which row.
#pragma once
#include <string_view>

#include "quern/tensor/tensor.h"

namespace quern::detail {

/// Error of `op`: `indices` is not i64, or an element is outside of 0..rows-1.
/// Returns it contiguous.
Tensor check_indices(std::string_view op, const Tensor& indices, int64_t rows);

/// The places of a list by the row they name: row rows[s] is named by places[offsets[s]] ...
/// places[offsets[s+1]-1], in rising order. All i64.
struct RowGroups {
  Tensor rows;     // [u], rising
  Tensor offsets;  // [u + 1]
  Tensor places;   // [n]
};
/// Of contiguous indices within 0..rows-1. By radix: takes time and memory by the list's length,
/// and gives the same on any number of threads.
RowGroups group_rows(const Tensor& indices, int64_t rows);
/// The same, rows in the order of their first places: who walks them walks the list. Sorts only the
/// places of rows that are named several times, where the rows are not too many for a bit each.
RowGroups group_in_order(const Tensor& indices, int64_t rows);

/// Of a list, the last place of each row that it names: at places[i] it names rows[i]. Both i64.
struct LastPlaces {
  Tensor places;  // [u], rising
  Tensor rows;    // [u]
};
LastPlaces last_places(const Tensor& indices, int64_t rows);

}  // namespace quern::detail
