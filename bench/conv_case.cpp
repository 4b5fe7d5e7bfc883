// One pass of a convolution: its operands, and each element of its result as a sum in f64.
#include <algorithm>
#include <array>

#include "conv_bench.h"

namespace quern::bench {
namespace {

using namespace kernels;

/// Tells elements of an image tensor [n, c, h, w] of either format from their place, and back.
struct Image {
  int64_t c, h, w;
  bool last;

  std::array<int64_t, 4> index(int64_t i) const {
    if (last) return {i / (c * h * w), i % c, i / (c * w) % h, i / c % w};
    return {i / (c * h * w), i / (h * w) % c, i / w % h, i % w};
  }
  int64_t at(int64_t n, int64_t channel, int64_t y, int64_t x) const {
    return last ? ((n * h + y) * w + x) * c + channel : ((n * c + channel) * h + y) * w + x;
  }
  /// Pixel i of all images, in one channel.
  int64_t pixel(int64_t i, int64_t channel) const {
    return at(i / (h * w), channel, i / w % h, i % w);
  }
};

/// All data are integers -2 ... 2, scales and shifts, too: products and sums are exact.
class ConvCase : public Case {
 public:
  ConvCase(const ConvChoice& choice, bool fused, bool both)
      : p_(choice.problem),
        image_{p_.ic, p_.ih, p_.iw, p_.format == MemoryFormat::channels_last},
        out_image_{p_.oc, p_.oh, p_.ow, image_.last} {
    const int64_t inputs = p_.n * p_.ic * p_.ih * p_.iw, outputs = p_.n * p_.oc * p_.oh * p_.ow;
    const int64_t weights = p_.oc * p_.ic / p_.groups * p_.kh * p_.kw;
    const bool forward = choice.pass == ConvPass::forward, dgrad = choice.pass == ConvPass::dgrad,
               wgrad = choice.pass == ConvPass::wgrad;
    if (!dgrad || fused || both) x_ = &integers(p_.dtype, inputs);
    if (both) dw_ = &result(DType::f32, weights);
    if (dgrad) dx_ = &result(p_.dtype, inputs);
    y_ = forward ? &result(p_.dtype, outputs) : &integers(p_.dtype, outputs);
    weight_ = wgrad ? &result(DType::f32, weights) : &integers(p_.dtype, weights);
    ConvChoice planned = choice;
    planned.problem.maps = fused && !dgrad && p_.ic != 3, planned.problem.sums = fused && !wgrad;
    plan_ = plan_conv(planned);
    if (!wgrad) {
      packed_ = &result(DType::u8, plan_->packed_bytes());
      plan_->pack(weight_->data(), p_.dtype, packed_->data());
    }
    if (!fused) return;
    if (p_.ic != 3) {  // images come as they are
      scale_ = &integers(DType::f32, p_.ic), shift_ = &integers(DType::f32, p_.ic);
      center_ = &integers(DType::f32, p_.ic);
    }
    if (!wgrad) {
      first_ = &result(DType::f64, forward ? p_.oc : p_.ic);
      second_ = &result(DType::f64, forward ? p_.oc : p_.ic);
    }
  }

  void run() override {
    const auto data = [](const Operand* o) { return o ? o->data() : nullptr; };
    using Kind = Epilogue::Kind;
    const bool fused = first_ != nullptr;
    void *first = data(first_), *second = data(second_);
    const ChannelMap map{data(center_), data(scale_), data(shift_)};
    switch (plan_->pass) {
      case ConvPass::forward:
        return plan_->run(
            x_->data(), packed_->data(), y_->data(),
            {.kind = fused ? Kind::moments : Kind::store, .first = first, .second = second}, map);
      case ConvPass::dgrad: {
        const Epilogue epilogue{.kind = fused ? Kind::gradient : Kind::store,
                                .map = map,
                                .x = data(x_),
                                .first = first,
                                .second = second};
        if (!dw_) return plan_->run(y_->data(), packed_->data(), dx_->data(), epilogue);
        return plan_->run_both(y_->data(), packed_->data(), dx_->data(), dw_->data(), epilogue);
      }
      case ConvPass::wgrad: return plan_->run(x_->data(), y_->data(), weight_->data(), {}, map);
    }
  }

  std::string wrong() override {
    switch (plan_->pass) {
      case ConvPass::forward: {
        std::string text = compare_values(*y_, [&](int64_t i) { return expected_output(i); });
        return text.empty() && first_ ? wrong_moments(p_.oc / 2) : text;
      }
      case ConvPass::dgrad: {
        std::string text = compare_values(*dx_, [&](int64_t i) { return expected_input(i); });
        if (text.empty() && first_) text = wrong_sums(p_.ic / 2);
        if (!text.empty() || !dw_) return text;
        return compare_values(*dw_, [&](int64_t i) { return expected_weight(i); });
      }
      case ConvPass::wgrad: break;
    }
    return compare_values(*weight_, [&](int64_t i) { return expected_weight(i); });
  }

 private:
  /// Sums of integers are exact, but for the one engine whose transforms round.
  template <class F>
  std::string compare_values(const Operand& got, F f) const {
    if (plan_->kernel != &conv_kernel("winograd_4x4")) return compare_exactly(got, f);
    return compare_some(got, f, [](int64_t, double) { return 1.0 / 64; });
  }
  /// Which input output (i, j) meets under tap (r, s), and whether there is one.
  bool input_of(int64_t i, int64_t j, int64_t r, int64_t s, int64_t& y, int64_t& x) const {
    y = i * p_.stride_h - p_.pad_h + r * p_.dilation_h;
    x = j * p_.stride_w - p_.pad_w + s * p_.dilation_w;
    return y >= 0 && y < p_.ih && x >= 0 && x < p_.iw;
  }
  double weight(int64_t o, int64_t c, int64_t r, int64_t s) const {
    return (*weight_)[((o * (p_.ic / p_.groups) + c) * p_.kh + r) * p_.kw + s];
  }
  double normalised(int64_t at, int64_t channel) const {
    return (*scale_)[channel] * ((*x_)[at] - (*center_)[channel]) + (*shift_)[channel];
  }
  double input(int64_t n, int64_t channel, int64_t y, int64_t x) const {
    const int64_t at = image_.at(n, channel, y, x);
    return scale_ ? std::max(0.0, normalised(at, channel)) : (*x_)[at];
  }

  double expected_output(int64_t at) const {
    const auto [n, o, i, j] = out_image_.index(at);
    const int64_t channels = p_.ic / p_.groups, first = o / (p_.oc / p_.groups) * channels;
    double sum = 0;
    for (int64_t r = 0, y = 0, x = 0; r < p_.kh; ++r)
      for (int64_t s = 0; s < p_.kw; ++s)
        if (input_of(i, j, r, s, y, x))
          for (int64_t c = 0; c < channels; ++c)
            sum += input(n, first + c, y, x) * weight(o, c, r, s);
    return sum;
  }

  double expected_input(int64_t at) const {
    const auto [n, channel, y, x] = image_.index(at);
    if (scale_ && !(normalised(at, channel) > 0)) return 0;
    const int64_t channels = p_.ic / p_.groups, outputs = p_.oc / p_.groups;
    const int64_t first = channel / channels * outputs;
    double sum = 0;
    for (int64_t r = 0; r < p_.kh; ++r)
      for (int64_t s = 0; s < p_.kw; ++s) {
        const int64_t up = y + p_.pad_h - r * p_.dilation_h,
                      left = x + p_.pad_w - s * p_.dilation_w;
        const int64_t i = up / p_.stride_h, j = left / p_.stride_w;
        if (up < 0 || left < 0 || up % p_.stride_h || left % p_.stride_w) continue;
        if (i >= p_.oh || j >= p_.ow) continue;
        for (int64_t o = first; o < first + outputs; ++o)
          sum += (*y_)[out_image_.at(n, o, i, j)] * weight(o, channel % channels, r, s);
      }
    return sum;
  }

  double expected_weight(int64_t at) const {
    const int64_t s = at % p_.kw, r = at / p_.kw % p_.kh, channels = p_.ic / p_.groups;
    const int64_t c = at / (p_.kw * p_.kh) % channels, o = at / (p_.kw * p_.kh * channels);
    const int64_t channel = o / (p_.oc / p_.groups) * channels + c;
    double sum = 0;
    for (int64_t n = 0, y = 0, x = 0; n < p_.n; ++n)
      for (int64_t i = 0; i < p_.oh; ++i)
        for (int64_t j = 0; j < p_.ow; ++j)
          if (input_of(i, j, r, s, y, x))
            sum += (*y_)[out_image_.at(n, o, i, j)] * input(n, channel, y, x);
    return sum;
  }

  std::string wrong_moments(int64_t channel) const {
    std::vector<double> y(static_cast<size_t>(p_.n * p_.oh * p_.ow));
    for (int64_t i = 0; double& value : y) value = expected_output(out_image_.pixel(i++, channel));
    const double count = static_cast<double>(y.size());
    double mean = 0;
    for (double value : y) mean += value / count;
    const auto term = [&](int64_t i) { return y[static_cast<size_t>(i)] / count; };
    const auto square = [&](int64_t i) {
      const double d = y[static_cast<size_t>(i)] - mean;
      return d * d;
    };
    std::string text = compare_sum("mean", (*first_)[channel], std::ssize(y), term);
    return text.empty() ? compare_sum("m2", (*second_)[channel], std::ssize(y), square) : text;
  }

  std::string wrong_sums(int64_t channel) const {
    const int64_t n = p_.n * p_.ih * p_.iw;
    const auto dz = [&](int64_t i) { return expected_input(image_.pixel(i, channel)); };
    const auto dzx = [&](int64_t i) {
      return dz(i) * ((*x_)[image_.pixel(i, channel)] - (*center_)[channel]);
    };
    std::string text = compare_sum("sum of dz", (*first_)[channel], n, dz);
    return text.empty() ? compare_sum("sum of dz x", (*second_)[channel], n, dzx) : text;
  }

  std::unique_ptr<const ConvPlan> plan_;
  const ConvProblem p_;
  Image image_, out_image_;
  Operand *x_ = nullptr, *dx_ = nullptr;  // of dgrad: x if it is fused, or of both gradients
  Operand* dw_ = nullptr;                 // of both
  Operand *y_, *weight_;                  // or their gradients
  Operand* packed_ = nullptr;
  // Of the batch norm before; and what leaves: moments, or sums of dz.
  Operand *scale_ = nullptr, *shift_ = nullptr, *center_ = nullptr;
  Operand *first_ = nullptr, *second_ = nullptr;
};

}  // namespace

std::unique_ptr<Case> conv_case(const ConvChoice& choice, bool fused, bool both) {
  return std::make_unique<ConvCase>(choice, fused, both);
}

}  // namespace quern::bench
