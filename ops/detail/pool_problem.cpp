#include "quern/ops/detail/pool_problem.h"

#include "quern/ops/kernels/pool/pool.h"
#include "quern/tensor/raw.h"

namespace quern::detail {

using namespace kernels;

void check_pool_input(std::string_view op, const Tensor& x) {
  check(x.defined() && is_floating(x.dtype()) && x.dim() == 4 && x.numel() > 0, op,
        "x: expected a floating, non-empty tensor [N,C,H,W], got {}", x);
  check_computes(op, x.dtype());
}

Pair pooled_size(std::string_view op, const Tensor& x, const PoolWindow& window, bool ceil_mode) {
  const auto in_range = [&](std::string_view name, Pair value) {
    constexpr int64_t kMax = int64_t{1} << 31;  // products with it stay far from overflow
    check(1 <= value.h && value.h < kMax && 1 <= value.w && value.w < kMax, op,
          "{}: expected 1 or more (below 2^31), got {}", name, value);
  };
  const auto& [kernel, stride, padding, dilation] = window;
  in_range("kernel", kernel), in_range("stride", stride), in_range("dilation", dilation);
  check(0 <= padding.h && padding.h <= kernel.h / 2 && 0 <= padding.w && padding.w <= kernel.w / 2,
        op, "padding: expected 0 to half of kernel {}, got {}", kernel, padding);
  const Pair out{
      kernels::pooled_size(x.size(2), {kernel.h, stride.h, padding.h, dilation.h}, ceil_mode),
      kernels::pooled_size(x.size(3), {kernel.w, stride.w, padding.w, dilation.w}, ceil_mode)};
  check(out.h >= 1 && out.w >= 1, op,
        "x: expected room for a window of kernel {}, dilation {}, padding {}, got {}", kernel,
        dilation, padding, x);
  return out;
}

PoolProblem::PoolProblem(const Tensor& x, PoolWindows h, PoolWindows w)
    : shape_(x.shape()),
      out_shape_{x.size(0), x.size(1), h.out, w.out},
      dtype_(x.dtype()),
      format_(x.format()),
      channels_(format_ == MemoryFormat::channels_last ? x.size(1) : 1),
      h_(std::move(h)),
      w_(std::move(w)),
      kernel_(&select_pool_kernel(dtype_, channels_, h_.kernel * w_.kernel)) {}

PoolProblem::PoolProblem(const Tensor& x, Pair out, const PoolWindow& window,
                         bool count_include_pad)
    : PoolProblem(
          x,
          strided_windows(x.size(2), out.h,
                          {window.kernel.h, window.stride.h, window.padding.h, window.dilation.h},
                          count_include_pad),
          strided_windows(x.size(3), out.w,
                          {window.kernel.w, window.stride.w, window.padding.w, window.dilation.w},
                          count_include_pad)) {}

Pool PoolProblem::pool() const {
  return {channels_, h_.axis(), w_.axis(), h_.kernel > 256 / w_.kernel};
}

Tensor PoolProblem::dense(const Tensor& t) const {
  return raw::contiguous(raw::to(t, dtype_), format_);
}
Tensor PoolProblem::new_input() const { return empty(shape_, dtype_, format_); }
Tensor PoolProblem::new_output() const { return empty(out_shape_, dtype_, format_); }
Tensor PoolProblem::new_index() const {
  return empty(out_shape_, pool().wide_index ? DType::i32 : DType::u8, format_);
}

void PoolProblem::report(VerboseOp& line) const {
  if (!line) return;
  line.set(kernel_->name, fmt::format("{}->{}", shape_, out_shape_),
           fmt::format("{}:{}", dtype_, format_));
  line.set_work(0, (numel(shape_) + numel(out_shape_)) * itemsize(dtype_));
}

}  // namespace quern::detail
