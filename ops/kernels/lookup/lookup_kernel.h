// The contract of a lookup: rows of a table moved to and fro, or summed, by lists of their numbers.
// The elements of a row are adjacent; rows may lie apart.
// Files compiled with ISA flags include this.
#pragma once
#include <cstdint>

#include "quern/ops/kernels/unit.h"

namespace quern::kernels {

/// to[to_index[i], :] = from[from_index[i], :] for i = 0 ... n-1, in rising order.
struct RowCopy {
  const void* from;
  void* to;                             // shares no memory with `from`
  const int64_t* from_index = nullptr;  // [n], as to_index; null: row i
  const int64_t* to_index = nullptr;
  int64_t n;
  int64_t next = 0;                // rows of the lists behind these, which are fetched only
  int64_t from_stride, to_stride;  // bytes from a row to the next
  int64_t bytes;                   // of a row
  // Past the caches: for what won't be read soon. `to`, to_stride and bytes are multiples of 64.
  bool stream = false;
};

struct RowCopyKernel {
  const char* name;  // copy_rows_<isa>; the naive one ends in _reference
  Isa isa;
  void (*run)(const RowCopy&);
};

/// to[to_index[s], :] = Σ weight[j] · from[index[j], :] over the places j = offsets[s] ...
/// offsets[s+1]-1 of segment s, one after the other; a segment without places gives zeros.
struct SegmentSum {
  const void* from;
  int64_t from_stride;             // elements from a row to the next
  const int64_t* index = nullptr;  // by place; null: row j
  const void* weight = nullptr;    // by place, in the type that is summed in; null: 1
  const int64_t* offsets;          // [segments + 1], not decreasing
  int64_t segments;
  int64_t next = 0;  // segments behind these, which are fetched only
  void* to;          // shares no memory with `from`
  int64_t to_stride;
  const int64_t* to_index = nullptr;  // [segments], no row twice; null: row s
  int64_t width;                      // elements of a row
  bool add = false;                   // to what is there, as the first term
};

struct SegmentSumKernel {
  const char* name;  // segment_sum_<from>_<to>_<isa>
  Isa isa;
  DType from, to;  // summed in f32, in f64 where `to` is that
  void (*run)(const SegmentSum&);
};

}  // namespace quern::kernels
