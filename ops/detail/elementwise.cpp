#include "quern/ops/detail/elementwise.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "quern/ops/binary.h"
#include "quern/ops/detail/report.h"
#include "quern/ops/kernels/elementwise/elementwise.h"
#include "quern/tensor/check_dense.h"
#include "quern/tensor/convert.h"
#include "quern/tensor/divide.h"
#include "quern/tensor/loops.h"
#include "quern/tensor/parallel.h"
#include "quern/tensor/raw.h"
#include "quern/tensor/storage.h"

namespace quern::raw {
namespace {

using namespace kernels;

// Elements of a cell: 32 KiB of f32, so that threads are through together; but what is less than
// four of them is one, which other threads are not worth waking for.
constexpr int64_t kGrain = 1 << 13;
int64_t grain(int64_t n) { return n <= 4 * kGrain ? 4 * kGrain : kGrain; }

bool takes_integers(Unary f) {
  return f == Unary::neg || f == Unary::abs || f == Unary::relu || f == Unary::clamp;
}
bool takes_integers(Binary f) {
  return f == Binary::add || f == Binary::sub || f == Binary::mul || f == Binary::maximum ||
         f == Binary::minimum;
}

/// What f computes in, given operands of this dtype.
template <class Function>
DType compute_dtype(Function f, DType dtype) {
  return takes_integers(f) || is_floating(dtype) ? dtype : DType::f32;
}

struct Place {
  int64_t y, a, b;  // in elements
};
using Loops = detail::Loops<Place, &Place::y, &Place::a, &Place::b>;

/// The loops over y and operands expanded to its shape; a step is 0 where one is broadcast.
Loops loop_nest(const Tensor& y, const Tensor& a, const Tensor& b) {
  return Loops(y.shape(), y.strides(), a.strides(), b.strides());
}

/// A pointer to element `offset` as a kernel takes it where the operand is a scalar: bf16 widened.
const void* scalar_at(const Tensor& t, int64_t offset, float& widened) {
  if (t.dtype() != DType::bf16) return t.data_ptr(offset);
  widened = static_cast<float>(t.data<bfloat16>()[offset]);
  return &widened;
}

/// Runs of so many bytes and less are too short for a kernel to begin each anew.
constexpr int64_t kShortRun = 16;
/// Runs of more elements gain nothing by going to a kernel together.
constexpr int64_t kLargestRun = kGrain / 2;

/// The values of one operand, each of which serves a run of y and of the other operand: a kernel
/// gets many runs at once. Short ones it gets as one, for which the values are repeated.
struct RunValues {
  int64_t size = 0, step = 0;  // of a run, 0 where there are none; from a value to the next
  int64_t dense_step = 0;      // from a run of the other operand to the next
  bool repeated = false;
  int64_t Place::*of = nullptr;

  /// Makes one run of all, in which that operand does not move.
  static RunValues take(Loops& nest, int64_t item) {
    const Loops::Axis run = nest.inner();
    if (nest.count() < 2 || (run.a != 0 && run.b != 0) || run.size > kLargestRun) return {};
    Loops::Axis& runs = nest[nest.count() - 2];
    if (runs.y != run.size) return {};
    const bool of_a = run.a == 0;
    const int64_t step = of_a ? runs.a : runs.b, dense_step = of_a ? runs.b : runs.a;
    const bool repeated = dense_step == run.size && run.size * item <= kShortRun;
    runs = {run, runs.size * run.size};
    nest.drop_inner();
    return {run.size, step, dense_step, repeated, of_a ? &Place::a : &Place::b};
  }
  /// Does a kernel take them where they are?
  bool in_place(DType dtype) const { return !repeated && step == 1 && dtype != DType::bf16; }
  /// Bytes of scratch that those of n elements take.
  int64_t bytes(int64_t n, DType dtype) const {
    if (size == 0 || in_place(dtype)) return 0;
    return repeated ? n * itemsize(dtype)
                    : n / size * std::max(itemsize(dtype), int64_t{sizeof(float)});
  }
  /// Those of n elements from the one at `from` on, as a kernel takes them.
  const void* fill(const Tensor& t, int64_t from, int64_t n, std::byte* to) const {
    if (in_place(t.dtype())) return t.data_ptr(from);
    const int64_t values = n / size, item = itemsize(t.dtype());
    const auto* first = static_cast<const std::byte*>(t.data_ptr(from));
    if (repeated) detail::repeat_run(to, size, first, step, values, item);
    else if (t.dtype() != DType::bf16) detail::copy_run(to, 1, first, step, values, item);
    else
      for (int64_t i = 0; i < values; ++i)
        reinterpret_cast<float*>(to)[i] =
            static_cast<float>(reinterpret_cast<const bfloat16*>(first)[i * step]);
    return to;
  }
};

/// run(n, a, b, y, mode) over the nest, whose innermost loop a kernel can take: cells are parts of
/// long runs, or groups of short ones.
template <class RunKernel>
void run_nest(Loops nest, const Tensor& y, const Tensor& a, const Tensor& b, RunKernel run_kernel) {
  const int64_t item = itemsize(a.dtype());
  const RunValues values = RunValues::take(nest, item);
  const Loops::Axis run = nest.inner();
  const Run mode = values.repeated ? Run::dense_dense
                   : run.a == 0    ? Run::scalar_dense
                   : run.b == 0    ? Run::dense_scalar
                                   : Run::dense_dense;
  const int64_t whole = std::max<int64_t>(1, values.size);  // cells are of whole runs
  const int64_t cell = std::max<int64_t>(1, grain(y.numel()) / whole) * whole;
  const int64_t runs = y.numel() / run.size;
  const int64_t parts = ceil_div(run.size, cell), group = std::max<int64_t>(1, cell / run.size);
  auto* const out = static_cast<std::byte*>(y.out_ptr());

  parallel_chunks(runs * parts, group, [&](int64_t begin, int64_t end) {
    Loops::Walk walk(nest, begin / parts);
    int64_t part = begin % parts;
    const Workspace filled(values.bytes(std::min(cell, run.size), a.dtype()));
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = part * cell, n = std::min(cell, run.size - first);
      const Place at = walk.at(0);
      const int64_t skipped = values.size > 0 ? first / values.size : 0;  // runs
      float widened;
      const auto operand = [&](const Tensor& t, int64_t Place::*of) -> const void* {
        if (values.of == of)
          return values.fill(t, at.*of + skipped * values.step, n, filled.as<std::byte>());
        if (run.*of == 0) return scalar_at(t, at.*of, widened);
        return t.data_ptr(at.*of + (values.size > 0 ? skipped * values.dense_step : first));
      };
      const bool several = values.size > 0 && !values.repeated;
      const Runs taken = several ? Runs(values.size, n / values.size, values.dense_step) : Runs(n);
      run_kernel(taken, operand(a, &Place::a), operand(b, &Place::b),
                 out + (at.y + first) * itemsize(y.dtype()), mode);
      if (++part == parts) part = 0, walk.next();
    }
  });
}

/// Elements of a run that is worth no more to lengthen.
constexpr int64_t kLongRun = 1 << 10;

/// How often a row of `rows` that is the same for all of them is repeated, so that runs are long: a
/// divisor of how many there are. Where that is few, copies of it would be a good part of y.
int64_t repetitions(int64_t row, int64_t rows) {
  int64_t most = std::min(kLongRun / row, rows / 4);
  while (most > 1 && rows % most != 0) --most;
  return std::max<int64_t>(most, 1);
}

/// To begin a run takes as long as some hundred elements, and where a factor of each channel meets
/// channels-last pixels, a run is a pixel. So an operand whose row serves all of the next axis is
/// copied, that row several times, and `nest` goes through the copy; null where there is none.
/// `own` is the operand before it was expanded, of_own its steps, of_other those of the other one.
Tensor repeat_rows(const Tensor& own, Loops& nest, int64_t Place::*of_own,
                   int64_t Place::*of_other) {
  if (nest.count() < 2 || !own.is_dense_as(own.format())) return {};
  Loops::Axis &rows = nest[nest.count() - 2], &run = nest[nest.count() - 1];
  const bool serves_all = run.*of_own == 1 && rows.*of_own == 0;
  const bool dense = run.*of_other == 1 && rows.*of_other == run.size && rows.y == run.size;
  if (!serves_all || !dense) return {};
  for (int i = 0; i < nest.count() - 2; ++i)
    if (nest[i].*of_own % run.size != 0) return {};
  const int64_t times = repetitions(run.size, rows.size);
  if (times == 1) return {};

  const Tensor copy = contiguous(
      as_strided(own, {own.numel() / run.size, times, run.size}, {run.size, 0, 1}, own.offset()));
  for (int i = 0; i < nest.count() - 2; ++i) nest[i].*of_own *= times;
  rows.y *= times, rows.*of_other *= times, rows.size /= times, run.size *= times;
  return copy;
}

/// run(n, a, b, y, mode) for a dense y and operands, of one dtype, that broadcast to it.
template <class RunKernel>
void broadcast(const Tensor& y, const Tensor& own_a, const Tensor& own_b, RunKernel run_kernel) {
  Tensor a = expand(own_a, y.shape()), b = expand(own_b, y.shape());
  Loops nest = loop_nest(y, a, b);
  if (nest.inner().a > 1 || (nest.inner().a == 0 && nest.inner().b == 0)) {
    a = contiguous(a, y.format());
    nest = loop_nest(y, a, b);
  }
  if (nest.inner().b > 1) {
    b = contiguous(b, y.format());
    nest = loop_nest(y, a, b);
  }
  if (const Tensor longer = repeat_rows(own_a, nest, &Place::a, &Place::b); longer.defined())
    a = longer;
  if (const Tensor longer = repeat_rows(own_b, nest, &Place::b, &Place::a); longer.defined())
    b = longer;
  run_nest(nest, y, a, b, run_kernel);
}

/// y = f(a, b) for a dense y and operands that broadcast to it, all of one dtype.
void binary_into(std::string_view op, Binary f, const Tensor& y, const Tensor& a, const Tensor& b,
                 double p, double q) {
  if (y.numel() == 0) return;
  VerboseOp line(op);
  const BinaryKernel& kernel = select_binary(op, f, y.dtype());
  detail::report(line, kernel.name, y, a.nbytes() + b.nbytes() + y.nbytes());
  broadcast(y, a, b, [&](const Runs& n, const void* from, const void* other, void* to, Run mode) {
    kernel.run(n, from, other, to, mode, p, q);
  });
}

/// The format of a result of this shape: that of the first operand that has it.
MemoryFormat format_of(const Shape& shape, std::initializer_list<Tensor> operands) {
  for (const Tensor& t : operands)
    if (t.shape() == shape) return t.format();
  return MemoryFormat::contiguous;
}

Tensor with_number(std::string_view op, Binary f, const Tensor& t, double number, Run mode) {
  detail::check_dense(op, "x", t);
  const DType dtype = is_floating(t.dtype()) ? t.dtype() : DType::f32;
  const Tensor x = contiguous(to(t, dtype), t.format());
  const Tensor y = empty_like(x);
  VerboseOp line(op);
  const BinaryKernel& kernel = select_binary(op, f, dtype);
  detail::report(line, kernel.name, y, x.nbytes() + y.nbytes());

  const float as_float = static_cast<float>(number);
  const void* scalar = dtype == DType::f64 ? static_cast<const void*>(&number) : &as_float;
  parallel_chunks(y.numel(), grain(y.numel()), [&](int64_t begin, int64_t end) {
    const void* dense = x.data_ptr(begin);
    const bool first = mode == Run::scalar_dense;
    kernel.run(end - begin, first ? scalar : dense, first ? dense : scalar, y.out_ptr(begin), mode,
               0, 0);
  });
  return y;
}

}  // namespace

Tensor unary(std::string_view op, Unary f, const Tensor& t, double p, double q) {
  detail::check_dense(op, "x", t);
  const Tensor x = contiguous(to(t, compute_dtype(f, t.dtype())), t.format());
  VerboseOp line(op);
  const UnaryKernel& kernel = select_unary(op, f, x.dtype());
  const Tensor y = empty_like(x);
  detail::report(line, kernel.name, y, x.nbytes() + y.nbytes());
  parallel_chunks(y.numel(), grain(y.numel()), [&](int64_t begin, int64_t end) {
    kernel.run(end - begin, x.data_ptr(begin), y.out_ptr(begin), p, q);
  });
  return y;
}

Tensor binary(std::string_view op, Binary f, const Tensor& a, const Tensor& b, double p, double q) {
  detail::check_dense(op, "a", a);
  detail::check_dense(op, "b", b);
  const Shape shape = broadcast_shapes(op, a.shape(), b.shape());
  const DType dtype = compute_dtype(f, promote(a.dtype(), b.dtype()));
  check(dtype != DType::boolean, op, "dtype: expected a numeric dtype, got bool");
  const Tensor y = empty(shape, dtype, format_of(shape, {a, b}));
  binary_into(op, f, y, to(a, dtype), to(b, dtype), p, q);
  return y;
}

Tensor binary(std::string_view op, Binary f, const Tensor& a, double b) {
  return with_number(op, f, a, b, Run::dense_scalar);
}

Tensor binary(std::string_view op, Binary f, double a, const Tensor& b) {
  return with_number(op, f, b, a, Run::scalar_dense);
}

Tensor compare(std::string_view op, Comparison f, const Tensor& a, const Tensor& b) {
  detail::check_dense(op, "a", a);
  detail::check_dense(op, "b", b);
  const Shape shape = broadcast_shapes(op, a.shape(), b.shape());
  const DType dtype = promote(a.dtype(), b.dtype());
  VerboseOp line(op);
  const ComparisonKernel& kernel = select_comparison(op, f, dtype);
  const Tensor y = empty(shape, DType::boolean, format_of(shape, {a, b}));
  detail::report(line, kernel.name, y, a.nbytes() + b.nbytes() + y.nbytes());
  if (y.numel() > 0)
    broadcast(y, to(a, dtype), to(b, dtype),
              [&](const Runs& n, const void* from, const void* other, void* out, Run mode) {
                kernel.run(n, from, other, static_cast<bool*>(out), mode);
              });
  return y;
}

Tensor where(std::string_view op, const Tensor& condition, const Tensor& a, const Tensor& b) {
  check(condition.defined() && condition.dtype() == DType::boolean, op,
        "condition: expected a bool tensor, got {}", condition);
  detail::check_dense(op, "a", a);
  detail::check_dense(op, "b", b);
  const Shape shape =
      broadcast_shapes(op, condition.shape(), broadcast_shapes(op, a.shape(), b.shape()));
  const DType dtype = promote(a.dtype(), b.dtype());
  VerboseOp line(op);
  const ChoiceKernel& kernel = select_choice(op, itemsize(dtype));
  const MemoryFormat format = format_of(shape, {a, b, condition});
  const Tensor y = empty(shape, dtype, format);
  detail::report(line, kernel.name, y, condition.nbytes() + a.nbytes() + b.nbytes() + y.nbytes());
  if (y.numel() == 0) return y;
  const bool same_a = a.numel() == 1, same_b = b.numel() == 1 && !same_a;
  const auto dense = [&](const Tensor& t, bool same) {
    return contiguous(same ? t : expand(t, shape), same ? t.format() : format);
  };
  const Tensor chosen = dense(condition, false), x = dense(to(a, dtype), same_a),
               z = dense(to(b, dtype), same_b);
  const Run mode = same_a ? Run::scalar_dense : same_b ? Run::dense_scalar : Run::dense_dense;
  parallel_chunks(y.numel(), grain(y.numel()), [&](int64_t begin, int64_t end) {
    kernel.run(end - begin, chosen.data<bool>() + begin, x.data_ptr(same_a ? 0 : begin),
               z.data_ptr(same_b ? 0 : begin), y.out_ptr(begin), mode);
  });
  return y;
}

void add_(const Tensor& dst, const Tensor& src, double alpha) {
  check_writable("add_", dst);
  detail::check_dense("add_", "src", src);
  check(broadcast_shapes("add_", dst.shape(), src.shape()) == dst.shape(), "add_",
        "src: expected a shape that broadcasts to {}, got {}", dst.shape(), src.shape());
  const Binary f = alpha == 1 ? Binary::add : Binary::add_scaled;
  Tensor addend = to(src, dst.dtype());
  if (dst.is_dense_as(dst.format())) {
    const bool in_step = addend.offset() == dst.offset() && addend.shape() == dst.shape() &&
                         addend.strides() == dst.strides();
    if (!in_step && may_overlap(dst, addend))
      addend = clone(addend);  // elements come to be read once written
    binary_into("add_", f, dst, dst, addend, alpha, 0);
    dst.storage()->bump_version();
  } else {
    copy_(dst, binary("add_", f, dst, addend, alpha));
  }
}

}  // namespace quern::raw
