// The network's two pools, forward and backward: max 3×3 by 2 after the stem, the mean of 7×7 at
// the end.
#include "quern/ops/kernels/pool/pool.h"

#include "suite.h"

namespace quern::bench {
namespace {

using namespace kernels;

struct Shape {
  bool max, backward;
  int64_t images, channels, in, out;
  PoolStep step;

  PoolWindows windows() const { return strided_windows(in, out, step, true); }
  int64_t inputs() const { return images * channels * in * in; }
  int64_t outputs() const { return images * channels * out * out; }
};

class PoolCase : public Case {
 public:
  /// `images`: those of the kernel, planes of one channel where it takes no more.
  PoolCase(const PoolKernel& kernel, const Shape& s, bool nhwc)
      : kernel_(kernel),
        max_(s.max),
        backward_(s.backward),
        images_(nhwc ? s.images : s.images * s.channels),
        h_(s.windows()),
        w_(s.windows()),
        pool_{nhwc ? s.channels : 1, h_.axis(), w_.axis(), false},
        in_(integers(kernel.dtype, backward_ ? s.outputs() : s.inputs())),
        out_(result(kernel.dtype, backward_ ? s.inputs() : s.outputs())),
        index_(result(DType::u8, max_ ? s.outputs() : 0)) {
    if (max_ && backward_) {  // the indices of some forward pass
      Operand &x = integers(kernel.dtype, s.inputs()), &y = result(kernel.dtype, s.outputs());
      max_pool_forward(kernel, pool_, images_, x.data(), y.data(), index_.data());
    }
  }

  void run() override { run(kernel_, out_.data(), index_.data()); }

  /// Against the reference: maxima, and the sums of integers that backward of max forms, are exact;
  /// of a mean only the division rounds, here and there.
  std::string wrong() override {
    for (const PoolKernel* last : table<PoolKernel>()) {
      const PoolKernel& reference = *last;
      if (reference.name != fmt::format("pool_{}_reference", kernel_.dtype)) continue;
      Operand expected(out_.dtype(), out_.count()), index(DType::u8, index_.count());
      run(reference, expected.data(), max_ && backward_ ? index_.data() : index.data());
      if (max_ && !backward_)
        if (std::string text = compare_exactly(index_, [&](int64_t i) { return index[i]; });
            !text.empty())
          return "index: " + text;
      return compare_some(
          out_, [&](int64_t i) { return expected[i]; },
          [&](int64_t, double value) {
            return max_ ? 0 : 2.02 * (0x1p-24 + unit_roundoff(out_.dtype())) * std::abs(value);
          });
    }
    return "no reference";
  }

 private:
  void run(const PoolKernel& kernel, void* out, void* index) const {
    if (max_ && backward_) max_pool_backward(kernel, pool_, images_, in_.data(), index, out);
    else if (max_) max_pool_forward(kernel, pool_, images_, in_.data(), out, index);
    else if (backward_) avg_pool_backward(kernel, pool_, images_, in_.data(), out);
    else avg_pool_forward(kernel, pool_, images_, in_.data(), out);
  }

  const PoolKernel& kernel_;
  bool max_, backward_;
  int64_t images_;
  PoolWindows h_, w_;
  Pool pool_;
  Operand &in_, &out_, &index_;
};

}  // namespace

void add_pool(const Options& options, Benchmarks& benchmarks) {
  const Shape shapes[] = {{true, false, options.batch, 64, 112, 56, {3, 2, 1, 1}},
                          {true, true, options.batch, 64, 112, 56, {3, 2, 1, 1}},
                          {false, false, options.batch, 2048, 7, 1, {7, 7, 0, 1}},
                          {false, true, options.batch, 2048, 7, 1, {7, 7, 0, 1}}};
  for (const Shape& s : shapes)
    for (DType dtype : options.dtypes)
      for (MemoryFormat format : options.formats) {
        const bool nhwc = format == MemoryFormat::channels_last;
        const int64_t channels = nhwc ? s.channels : 1, taps = s.step.kernel * s.step.kernel;
        const auto fits = [&](const PoolKernel& k) {
          return k.dtype == dtype && k.min_channels <= channels && channels <= k.max_channels;
        };
        each_wanted(options, table<PoolKernel>(), select_pool_kernel(dtype, channels, taps), fits,
                    [&](const PoolKernel& kernel) {
                      const auto elements = static_cast<double>(s.inputs() + s.outputs());
                      const auto indices = static_cast<double>(s.max ? s.outputs() : 0);
                      benchmarks.push_back(
                          {.name = fmt::format(
                               "{}_pool_{}/{}/{}/mb{}c{}h{}w{}k{}s{}", s.max ? "max" : "avg",
                               s.backward ? "bwd" : "fwd", kernel.name, short_name(format),
                               s.images, s.channels, s.in, s.in, s.step.kernel, s.step.stride),
                           .dtype = dtype,
                           .flop = 0,
                           .bytes = elements * static_cast<double>(itemsize(dtype)) + indices,
                           .make = [&kernel, s, nhwc] {
                             return std::make_unique<PoolCase>(kernel, s, nhwc);
                           }});
                    });
      }
}

}  // namespace quern::bench
