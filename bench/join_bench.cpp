// Where branch and shortcut of a residual block meet, at the network's sizes: what training runs
// forward (one pass) and backward (sums, apply).
#include "quern/ops/kernels/norm/join.h"

#include "conv_bench.h"

namespace quern::bench {
namespace {

using namespace kernels;

enum class Shortcut { none, identity, projection };
constexpr const char* kShortcuts[] = {"none", "identity", "projection"};

class JoinCase : public Case {
 public:
  JoinCase(const JoinKernel& kernel, const BatchNormSize& size, Shortcut shortcut, bool backward)
      : kernel_(kernel),
        size_(size),
        shortcut_(shortcut),
        backward_(backward),
        count_(size.images * size.pixels * size.channels),
        y_(integers(kernel.dtype, count_)),
        other_(integers(kernel.dtype, shortcut == Shortcut::none ? 0 : count_)),
        out_(result(kernel.dtype, backward ? 0 : count_)),
        dout_(integers(kernel.dtype, backward ? count_ : 0)),
        dy_(result(kernel.dtype, backward ? count_ : 0)),
        dother_(result(kernel.dtype, backward ? other_.count() : 0)),
        a_(uniform(DType::f32, size.channels)),
        b_(uniform(DType::f32, size.channels)),
        c_(uniform(DType::f32, size.channels)),
        sums_(result(DType::f64, 3 * size.channels)),
        mask_(static_cast<size_t>(size.images * size.pixels * mask_words(size.channels))) {
    if (!backward) return;
    for (int64_t i = 0; i < count_; ++i)
      if (sum(i) > 0) {
        const int64_t row = i / size.channels, c = i % size.channels;
        mask_[static_cast<size_t>(row * mask_words(size.channels) + c / 16)] |=
            static_cast<MaskWord>(1 << c % 16);
      }
  }

  void run() override {
    if (!backward_) {
      join_forward(kernel_, size_, branch(), shortcut(), out_.data(), mask_.data());
      return;
    }
    double* sums = static_cast<double*>(sums_.data());
    const JoinGradient gradient{dout_.data(), mask_.data()};
    join_reduce(kernel_, size_, branch(), shortcut(), gradient, sums, sums + size_.channels,
                sums + 2 * size_.channels);
    join_apply(kernel_, size_, branch(), shortcut(), gradient);
  }

  std::string wrong() override {
    if (backward_)
      for (int64_t c : {int64_t{0}, size_.channels / 2, size_.channels - 1})
        if (std::string text = wrong_sums(c); !text.empty()) return text;
    // Few roundings of terms whose magnitudes sum to at most this, and that of the store.
    const auto bound = [&](int64_t, double) {
      return (7.001 * 0x1p-24 + 1.001 * unit_roundoff(kernel_.dtype)) * 16;
    };
    return compare_some(
        backward_ ? dy_ : out_,
        [&](int64_t i) {
          const int64_t c = i % size_.channels;
          if (backward_) return a_[c] * dz(i) + b_[c] * (y_[i] - c_[c]) + c_[c];
          return std::max(sum(i), 0.0);
        },
        bound);
  }

 private:
  std::string wrong_sums(int64_t c) const {
    const auto at = [&](int64_t i) { return i * size_.channels + c; };
    const auto wrong_sum = [&](int64_t which, auto term) {
      return compare_sum("sum", sums_[which * size_.channels + c], count_ / size_.channels,
                         [&](int64_t i) { return dz(at(i)) * term(at(i)); });
    };
    std::string text = wrong_sum(0, [](int64_t) { return 1.0; });
    if (text.empty()) text = wrong_sum(1, [&](int64_t i) { return y_[i] - c_[c]; });
    if (text.empty() && shortcut_ == Shortcut::projection)
      text = wrong_sum(2, [&](int64_t i) { return other_[i] - c_[c]; });
    return text;
  }
  double sum(int64_t i) const {
    const int64_t c = i % size_.channels;
    const double v = a_[c] * (y_[i] - c_[c]) + b_[c];
    if (shortcut_ == Shortcut::none) return v;
    return v + (shortcut_ == Shortcut::identity ? other_[i] : a_[c] * (other_[i] - c_[c]) + b_[c]);
  }
  double dz(int64_t i) const { return sum(i) > 0 ? dout_[i] : 0; }
  JoinSide side(const Operand& v, const Operand& dv, bool affine) const {
    void* gradient = backward_ ? dv.data() : nullptr;
    if (!affine) return {.v = v.data(), .dv = gradient};
    return {.v = v.data(),
            .map = {c_.data(), a_.data(), b_.data()},
            .a = a_.data(),
            .b = b_.data(),
            .c = c_.data(),
            .dv = gradient};
  }
  JoinSide branch() const { return side(y_, dy_, true); }
  JoinSide shortcut() const {
    if (shortcut_ == Shortcut::none) return {};
    return side(other_, dother_, shortcut_ == Shortcut::projection);
  }

  const JoinKernel& kernel_;
  BatchNormSize size_;
  Shortcut shortcut_;
  bool backward_;
  int64_t count_;
  Operand &y_, &other_, &out_, &dout_, &dy_, &dother_, &a_, &b_, &c_, &sums_;
  std::vector<MaskWord> mask_;
};

/// Elements read and written for each that is put out.
double passes(Shortcut shortcut, bool backward) {
  if (!backward) return shortcut == Shortcut::none ? 2 : 3;
  return shortcut == Shortcut::none ? 5 : 8;
}

}  // namespace

void add_join(const Options& options, Benchmarks& benchmarks) {
  for (bool backward : {false, true})
    for (DType dtype : options.dtypes)
      for (Shortcut shortcut : {Shortcut::none, Shortcut::identity, Shortcut::projection})
        each_wanted(
            options, table<JoinKernel>(), select_join_kernel(dtype),
            [&](const JoinKernel& k) { return k.dtype == dtype; },
            [&](const JoinKernel& kernel) {
              for (const ConvProblem& p : read_conv_outputs(options)) {
                const BatchNormSize size{p.n, p.oh * p.ow, p.oc};
                const auto bytes = static_cast<double>(size.images * size.pixels * size.channels *
                                                       itemsize(dtype));
                benchmarks.push_back(
                    {.name = fmt::format("join_{}/{}/{}/mb{}c{}h{}w{}", backward ? "bwd" : "fwd",
                                         kernel.name, kShortcuts[static_cast<size_t>(shortcut)],
                                         p.n, p.oc, p.oh, p.ow),
                     .dtype = dtype,
                     .flop = 0,
                     .bytes = passes(shortcut, backward) * bytes,
                     .make = [&kernel, size, shortcut, backward] {
                       return std::make_unique<JoinCase>(kernel, size, shortcut, backward);
                     }});
              }
            });
}

}  // namespace quern::bench
