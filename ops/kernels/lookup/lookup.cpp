#include "quern/ops/kernels/lookup/lookup.h"

#include <algorithm>
#include <vector>

#include "quern/ops/kernels/blocking.h"
#include "quern/ops/kernels/table.h"
#include "quern/tensor/parallel.h"
#include "quern/tensor/storage.h"

namespace quern::kernels {
namespace {

constexpr int64_t kCellBytes = 1 << 18;  // of rows

constexpr int64_t kLongCells = 16;  // a segment of more is not left to one thread

int64_t rows_a_cell(int64_t bytes) {
  return std::max<int64_t>(16, kCellBytes / std::max<int64_t>(1, bytes));
}

/// Segment s, by partial sums over `grain` places each, which are added one after the other.
void sum_long(const SegmentSumKernel& kernel, const SegmentSum& sum, int64_t s, int64_t grain) {
  const DType sums = accumulator(kernel.to);
  const int64_t begin = sum.offsets[s], end = sum.offsets[s + 1];
  std::vector<int64_t> offsets;
  for (int64_t at = begin; at < end; at += grain) offsets.push_back(at);
  offsets.push_back(end);
  const int64_t parts = std::ssize(offsets) - 1;
  const Workspace scratch(parts * sum.width * itemsize(sums));

  SegmentSum partial = sum;
  partial.offsets = offsets.data();
  partial.segments = parts;
  partial.to = scratch.as<char>();
  partial.to_stride = sum.width;
  partial.to_index = nullptr;
  partial.add = false;
  segment_sum(select_segment_sum(kernel.from, sums), partial);

  const int64_t all[] = {0, parts}, row = sum.to_index ? sum.to_index[s] : s;
  segment_sum(select_segment_sum(sums, kernel.to),
              {.from = scratch.as<char>(),
               .from_stride = sum.width,
               .offsets = all,
               .segments = 1,
               .to = static_cast<char*>(sum.to) + row * sum.to_stride * itemsize(kernel.to),
               .to_stride = sum.to_stride,
               .width = sum.width,
               .add = sum.add});
}

}  // namespace

const RowCopyKernel& select_row_copy() {
  return *select<RowCopyKernel>("row_copy", [](const RowCopyKernel&) { return true; });
}

const SegmentSumKernel& select_segment_sum(DType from, DType to) {
  const auto* kernel = select<SegmentSumKernel>(
      "segment_sum", [=](const SegmentSumKernel& k) { return k.from == from && k.to == to; });
  check(kernel, "segment_sum",
        "rows: expected f32, bf16, f16 or f64 that are summed in it, got {} to {}", from, to);
  return *kernel;
}

void copy_rows(const RowCopyKernel& kernel, RowCopy copy) {
  copy.stream =
      copy.bytes % cache::kLine == 0 &&
      cache::bypassed(copy.to, copy.n * copy.bytes, copy.to_stride, cache::read_at_once());
  parallel_chunks(copy.n, rows_a_cell(copy.bytes), [&](int64_t begin, int64_t end) {
    RowCopy part = copy;
    part.n = end - begin;
    part.next = copy.n - end;
    if (copy.from_index) part.from_index += begin;
    else part.from = static_cast<const char*>(copy.from) + begin * copy.from_stride;
    if (copy.to_index) part.to_index += begin;
    else part.to = static_cast<char*>(copy.to) + begin * copy.to_stride;
    kernel.run(part);
  });
}

void segment_sum(const SegmentSumKernel& kernel, const SegmentSum& sum) {
  // Cell c has the segments whose first place is c's, and the last one those that begin at the end.
  const int64_t first = sum.offsets[0], places = sum.offsets[sum.segments] - first;
  const int64_t grain = rows_a_cell(sum.width * itemsize(kernel.from));
  const int64_t cells = std::max<int64_t>(1, (places + grain - 1) / grain);
  const auto segment_at = [&](int64_t cell) {
    if (cell == cells) return sum.segments;
    return std::lower_bound(sum.offsets, sum.offsets + sum.segments, first + cell * grain) -
           sum.offsets;
  };
  const auto is_long = [&](int64_t s) {
    return sum.offsets[s + 1] - sum.offsets[s] > kLongCells * grain;
  };
  std::vector<int64_t> long_ones(static_cast<size_t>(cells), -1);  // the last of a cell, or none
  parallel_for(cells, [&](int64_t cell) {
    const int64_t begin = segment_at(cell);
    int64_t end = segment_at(cell + 1);
    if (begin < end && is_long(end - 1)) long_ones[static_cast<size_t>(cell)] = --end;
    SegmentSum part = sum;
    part.segments = end - begin;
    part.next = sum.segments - end;
    part.offsets += begin;
    if (sum.to_index) part.to_index += begin;
    else part.to = static_cast<char*>(sum.to) + begin * sum.to_stride * itemsize(kernel.to);
    kernel.run(part);
  });
  for (const int64_t s : long_ones)
    if (s >= 0) sum_long(kernel, sum, s, grain);
}

}  // namespace quern::kernels
