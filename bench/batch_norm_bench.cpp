// batch_norm at the network's sizes: what training runs forward (statistics, normalise) and
// backward (sums, apply) but for the arithmetic a channel between the two passes.
#include "quern/ops/kernels/norm/batch_norm.h"

#include "conv_bench.h"

namespace quern::bench {
namespace {

using namespace kernels;

class BatchNormCase : public Case {
 public:
  BatchNormCase(const BatchNormKernel& kernel, const BatchNormSize& size, bool backward)
      : kernel_(kernel),
        size_(size),
        backward_(backward),
        x_(integers(kernel.dtype, size.images * size.pixels * size.channels)),
        dy_(integers(kernel.dtype, backward ? x_.count() : 0)),
        out_(result(kernel.dtype, x_.count())),
        a_(uniform(DType::f32, size.channels)),
        b_(uniform(DType::f32, size.channels)),
        c_(uniform(DType::f32, size.channels)),
        first_(result(DType::f64, size.channels)),
        second_(result(DType::f64, size.channels)) {}

  void run() override {
    auto *first = static_cast<double*>(first_.data()),
         *second = static_cast<double*>(second_.data());
    if (backward_) {
      batch_norm_backward_reduce(kernel_, size_, x_.data(), dy_.data(), c_.data(), first, second);
      batch_norm_backward_apply(kernel_, size_, x_.data(), dy_.data(), c_.data(), a_.data(),
                                b_.data(), c_.data(), out_.data());
    } else {
      batch_norm_stats(kernel_, size_, x_.data(), first, second);
      batch_norm_normalise(kernel_, size_, x_.data(), c_.data(), a_.data(), b_.data(), out_.data());
    }
  }

  std::string wrong() override {
    for (int64_t c : {int64_t{0}, size_.channels / 2, size_.channels - 1})
      if (std::string text = wrong_sums(c); !text.empty()) return text;
    // Four roundings at most of terms whose magnitudes sum to this, and that of the store.
    const auto magnitude = [&](int64_t i) {
      const int64_t c = channel(i);
      const double distance = std::abs(x_[i] - c_[c]);
      if (backward_) return std::abs(a_[c] * dy_[i]) + std::abs(b_[c]) * distance + std::abs(c_[c]);
      return std::abs(a_[c]) * distance + std::abs(b_[c]);
    };
    return compare_some(
        out_,
        [&](int64_t i) {
          const int64_t c = channel(i);
          const double distance = x_[i] - c_[c];
          return backward_ ? a_[c] * dy_[i] + b_[c] * distance + c_[c] : a_[c] * distance + b_[c];
        },
        [&](int64_t i, double) {
          return (5.001 * 0x1p-24 + 1.001 * unit_roundoff(out_.dtype())) * magnitude(i);
        });
  }

 private:
  int64_t channel(int64_t i) const {
    return kernel_.nhwc ? i % size_.channels : i / size_.pixels % size_.channels;
  }

  /// What was summed over channel c.
  std::string wrong_sums(int64_t c) const {
    const int64_t n = size_.images * size_.pixels;
    const double count = static_cast<double>(n);
    const auto at = [&](int64_t i) {
      if (kernel_.nhwc) return i * size_.channels + c;
      return (i / size_.pixels * size_.channels + c) * size_.pixels + i % size_.pixels;
    };
    const auto x = [&](int64_t i) { return x_[at(i)]; };
    const auto dy = [&](int64_t i) { return dy_[at(i)]; };
    double mean = 0;
    for (int64_t i = 0; i < n; ++i) mean += x(i) / count;
    std::string text =
        backward_ ? compare_sum("sum of dy", first_[c], n, dy)
                  : compare_sum("mean", first_[c], n, [&](int64_t i) { return x(i) / count; });
    if (!text.empty()) return text;
    if (backward_)
      return compare_sum("sum of dy x", second_[c], n,
                         [&](int64_t i) { return dy(i) * (x(i) - c_[c]); });
    return compare_sum("m2", second_[c], n,
                       [&](int64_t i) { return (x(i) - mean) * (x(i) - mean); });
  }

  const BatchNormKernel& kernel_;
  BatchNormSize size_;
  bool backward_;
  // The second factor of what is summed, then the passes' parameters; forward: scale a, shift b,
  // center c.
  Operand &x_, &dy_, &out_, &a_, &b_, &c_, &first_, &second_;
};

}  // namespace

void add_batch_norm(const Options& options, Benchmarks& benchmarks) {
  for (bool backward : {false, true})
    for (DType dtype : options.dtypes)
      for (MemoryFormat format : options.formats) {
        const bool nhwc = format == MemoryFormat::channels_last;
        each_wanted(
            options, table<BatchNormKernel>(), select_batch_norm_kernel(dtype, nhwc),
            [&](const BatchNormKernel& k) { return k.dtype == dtype && k.nhwc == nhwc; },
            [&](const BatchNormKernel& kernel) {
              for (const ConvProblem& p : read_conv_outputs(options)) {
                const BatchNormSize size{p.n, p.oh * p.ow, p.oc};
                const auto elements =
                    static_cast<double>(size.images * size.pixels * size.channels);
                const double passes = backward ? 5 : 3;
                benchmarks.push_back(
                    {.name =
                         fmt::format("batch_norm_{}/{}/{}/mb{}c{}h{}w{}", backward ? "bwd" : "fwd",
                                     kernel.name, short_name(format), p.n, p.oc, p.oh, p.ow),
                     .dtype = dtype,
                     .flop = 0,
                     .bytes = passes * elements * static_cast<double>(itemsize(dtype)),
                     .make = [&kernel, size, backward] {
                       return std::make_unique<BatchNormCase>(kernel, size, backward);
                     }});
              }
            });
      }
}

}  // namespace quern::bench
