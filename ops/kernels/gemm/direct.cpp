#include "quern/ops/kernels/gemm/direct.h"

#include <algorithm>
#include <cstddef>
#include <optional>

#include "quern/ops/kernels/blocking.h"
#include "quern/ops/kernels/gemm/complete.h"
#include "quern/ops/kernels/pack/matrix.h"
#include "quern/ops/kernels/table.h"
#include "quern/ops/kernels/work.h"
#include "quern/tensor/bfloat16.h"
#include "quern/tensor/dtype.h"
#include "quern/tensor/storage.h"

namespace quern::kernels {
namespace {

const std::byte* at(const GemmOperand& o, DType dtype, int64_t batch, int64_t row, int64_t column) {
  const int64_t element = batch * o.batch_stride + row * o.row_stride + column * o.col_stride;
  return static_cast<const std::byte*>(o.data) + element * itemsize(dtype);
}

/// Bᵀ·Aᵀ = Cᵀ, for C of few rows or a column.
GemmProblem transposed(const GemmProblem& p) {
  GemmProblem q = p;
  q.m = p.n, q.n = p.m;
  q.a = {p.b.data, p.b.col_stride, p.b.row_stride, p.b.batch_stride};
  q.b = {p.a.data, p.a.col_stride, p.a.row_stride, p.a.batch_stride};
  return q;
}

/// One column of B or, where their sums are long, few: each row of A is read once for all. Of few
/// columns that do not lie so, a copy is made, which takes as long as a few rows.
bool is_dots(const GemmProblem& p) {
  constexpr int64_t kFewColumns = 8, kLong = 256, kWorthACopy = 16;
  const bool few = p.n <= kFewColumns && p.k >= kLong;
  const bool copied = few && p.n > 1 && p.batch == 1 && p.m >= kWorthACopy;
  return (p.n == 1 || few) && p.a.col_stride == 1 && (p.b.row_stride == 1 || copied);
}

/// Rows of B that lie as vectors take them, and few enough of A or k to take them one time; or so
/// few of them, as one in an outer product, that C is all there is to move, unless it is a column.
/// Packing, which makes pairs of bf16 once for all rows of A, pays sooner there.
bool is_rows(const GemmProblem& p, DType dtype) {
  constexpr int64_t kFewRows = 8, kShort = 16;
  const int64_t small = dtype == DType::bf16 ? 32 : 64;  // of f32, B is half of L1
  const int64_t shallow = dtype != DType::bf16 ? 16 : std::min(p.m, p.n) < 64 ? 8 : 4;
  if (p.b.col_stride == 1 && p.k <= shallow && p.n > 1) return true;
  if (p.b.col_stride == 1 && (p.m <= kFewRows || (p.m <= kShort && p.n <= kShort))) return true;
  const bool copied = p.b.row_stride == 1 && p.batch > 1;  // by columns, to be transposed
  return (p.b.col_stride == 1 || copied) && p.m <= 2 * small && p.n <= small && p.k <= small;
}

/// A problem as the kernel takes it, and how it is cut into cells: by its shape alone.
struct Plan {
  GemmProblem p;
  bool dots, swapped;            // swapped: p is the transpose of what was asked for
  int64_t rows, columns, depth;  // of a cell
  int64_t parts;                 // of k, whose sums are added up in their order

  static std::optional<Plan> of(const GemmProblem& p, DType a_and_b) {
    const GemmProblem q = transposed(p);
    if (is_dots(p)) return Plan(p, true, false);
    if (is_dots(q)) return Plan(q, true, true);
    if (is_rows(p, a_and_b)) return Plan(p, false, false);
    if (p.n == 1 && q.b.col_stride == 1) return Plan(q, false, true);
    return {};
  }

 private:
  Plan(const GemmProblem& p, bool dots, bool swapped) : p(p), dots(dots), swapped(swapped) {
    constexpr int64_t kElements = 1 << 14, kMostParts = 32;  // of the matrix: 64 KiB of f32
    constexpr int64_t kColumns = 1 << 13;  // of several columns, which L1 keeps for all rows
    const bool several = dots && p.n > 1;
    columns = std::min<int64_t>(p.n, 1024);
    rows = std::clamp<int64_t>(kElements / (dots ? p.k : columns), 1, p.m);
    if (several) rows = std::clamp<int64_t>(4 * rows, 3, std::max<int64_t>(3, p.m / 16)) / 3 * 3;
    parts = 1;
    if (p.batch == 1 && ceil_div(p.m, rows) * ceil_div(p.n, columns) < 16)
      parts = std::clamp<int64_t>(
          rows * p.k / (4 * kElements / (dots ? 1 : columns)) / (dots ? 1 : rows), 1, kMostParts);
    if (several && p.batch == 1) parts = std::max(parts, ceil_div(p.n * p.k, kColumns));
    depth = ceil_div(p.k, parts);
    parts = ceil_div(p.k, depth);
  }
};

}  // namespace

const DirectKernel* select_direct_kernel(const GemmProblem& p, DType a_and_b) {
  if (a_and_b == DType::f64 || p.bf16_terms != 0 || p.packed_b != nullptr) return nullptr;
  if (p.m == 0 || p.n == 0 || p.k == 0 || p.batch == 0 || !Plan::of(p, a_and_b)) return nullptr;
  return select<DirectKernel>("gemm", [=](const DirectKernel& k) { return k.dtype == a_and_b; });
}

void direct_product(const DirectKernel& kernel, const GemmProblem& asked) {
  const Plan plan = *Plan::of(asked, kernel.dtype);
  GemmProblem p = plan.p;
  std::optional<Workspace> b_columns;
  if (plan.dots && p.n > 1 && p.b.row_stride != 1) {
    const int64_t item = itemsize(kernel.dtype), column = p.k + cache::kLine / item;
    b_columns.emplace(p.n * column * item);
    copy_matrix(item, p.b.data, p.b.col_stride, p.b.row_stride, b_columns->as<void>(), column, p.n,
                p.k);
    p.b = {b_columns->as<void>(), 1, column, 0};
  }
  const auto complete_at = [&](int64_t batch, int64_t i, int64_t j, int64_t m, int64_t n,
                               const float* sums, int64_t ld) {
    if (plan.swapped) complete(asked, batch, j, i, n, m, DType::f32, sums, ld);
    else complete(asked, batch, i, j, m, n, DType::f32, sums, ld);
  };
  const bool sums_are_c = asked.bias == nullptr && !asked.accumulate &&
                          (!plan.swapped || plan.dots || asked.c_row_stride == 1) &&
                          plan.parts == 1;
  const bool rounds =  // in registers
      kernel.rounds && sums_are_c && !plan.dots && asked.c_dtype == DType::bf16;
  const bool to_c = rounds || (sums_are_c && asked.c_dtype == DType::f32);
  const int64_t down = ceil_div(p.m, plan.rows), across = ceil_div(p.n, plan.columns);
  std::optional<Workspace> partial;
  if (plan.parts > 1) partial.emplace(plan.parts * p.m * p.n * int64_t{sizeof(float)});

  const bool transposes = !plan.dots && p.b.col_stride != 1 && p.n > 1;
  // What memory bounds takes longer than its multiplications.
  const int64_t work = plan.rows * plan.columns * plan.depth * (plan.dots || p.m < 4 ? 8 : 1);
  const int64_t cells = p.batch * down * across * plan.parts;
  parallel_chunks(cells, std::max<int64_t>(1, kWorthACell / work), [&](int64_t begin, int64_t end) {
    std::optional<Workspace> b_rows, sums;
    if (transposes) b_rows.emplace(plan.depth * plan.columns * itemsize(kernel.dtype));
    if (!to_c && !partial) sums.emplace(plan.rows * plan.columns * int64_t{sizeof(float)});
    for (int64_t cell = begin; cell < end; ++cell) {
      const int64_t part = cell % plan.parts, j = cell / plan.parts % across * plan.columns;
      const int64_t i = cell / plan.parts / across % down * plan.rows;
      const int64_t batch = cell / plan.parts / across / down, k0 = part * plan.depth;
      Direct d{.m = std::min(plan.rows, p.m - i),
               .n = std::min(plan.columns, p.n - j),
               .k = std::min(plan.depth, p.k - k0),
               .a = at(p.a, kernel.dtype, batch, i, k0),
               .a_row = p.a.row_stride,
               .a_col = p.a.col_stride,
               .b = at(p.b, kernel.dtype, batch, k0, j),
               .b_row = p.b.row_stride,
               .b_col = p.b.col_stride,
               .c = nullptr,
               .c_row = 1,
               .c_col = 1};
      if (transposes) {
        copy_matrix(itemsize(kernel.dtype), d.b, p.b.row_stride, p.b.col_stride, b_rows->as<void>(),
                    d.n, d.k, d.n);
        d.b = b_rows->as<void>(), d.b_row = d.n, d.b_col = 1;
      }
      // What was asked for has rows of C, which are columns of d's where it is swapped.
      const int64_t ld = to_c      ? asked.c_row_stride
                         : partial ? (plan.swapped ? p.m : p.n)
                                   : (plan.swapped ? d.m : d.n);
      (plan.swapped ? d.c_col : d.c_row) = ld;
      if (sums) {
        d.c = sums->as<float>();
      } else if (rounds) {
        d.rounded =
            static_cast<bfloat16*>(p.c) + batch * p.c_batch_stride + i * d.c_row + j * d.c_col;
      } else {
        d.c = to_c ? static_cast<float*>(p.c) + batch * p.c_batch_stride
                   : partial->as<float>() + part * p.m * p.n;
        d.c += i * d.c_row + j * d.c_col;
      }
      (plan.dots ? kernel.dots : kernel.rows)(d);
      if (sums) complete_at(batch, i, j, d.m, d.n, d.c, ld);
    }
  });
  if (!partial) return;
  float* const sums = partial->as<float>();
  const int64_t elements = p.m * p.n;
  for (int64_t part = 1; part < plan.parts; ++part)
    for (int64_t e = 0; e < elements; ++e) sums[e] += sums[part * elements + e];
  complete_at(0, 0, 0, p.m, p.n, sums, plan.swapped ? p.m : p.n);
}

}  // namespace quern::kernels
