#include "conv_bench.h"

#include <array>
#include <cstdio>
#include <set>

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
};

class ConvCase : public Case {
 public:
  explicit ConvCase(const ConvPlan& plan)
      : plan_(plan),
        p_(plan_.problem),
        x_{p_.ic, p_.ih, p_.iw, p_.format == MemoryFormat::channels_last},
        y_{p_.oc, p_.oh, p_.ow, x_.last} {
    const int64_t inputs = p_.n * p_.ic * p_.ih * p_.iw, outputs = p_.n * p_.oc * p_.oh * p_.ow;
    const int64_t weights = p_.oc * p_.ic / p_.groups * p_.kh * p_.kw;
    const auto operand = [&](bool is_result, DType dtype, int64_t count) {
      return is_result ? &result(dtype, count) : &integers(dtype, count);
    };
    input_ = operand(plan.pass == ConvPass::dgrad, p_.dtype, inputs);
    output_ = operand(plan.pass == ConvPass::forward, p_.dtype, outputs);
    weight_ = operand(plan.pass == ConvPass::wgrad,
                      plan.pass == ConvPass::wgrad ? DType::f32 : p_.dtype, weights);
    packed_ = weight_;
    if (plan.pass != ConvPass::wgrad && plan_.packed_bytes() > 0) {
      packed_ = &result(DType::u8, plan_.packed_bytes());
      plan_.pack(weight_->data(), packed_->data());
    }
  }

  void run() override {
    switch (plan_.pass) {
      case ConvPass::forward:
        return conv_forward(plan_, input_->data(), packed_->data(), output_->data());
      case ConvPass::dgrad:
        return conv_dgrad(plan_, output_->data(), packed_->data(), input_->data());
      case ConvPass::wgrad:
        return conv_wgrad(plan_, input_->data(), output_->data(), weight_->data());
    }
  }

  std::string wrong() override {
    switch (plan_.pass) {
      case ConvPass::forward:
        return compare_exactly(*output_, [&](int64_t i) { return expected_output(i); });
      case ConvPass::dgrad:
        return compare_exactly(*input_, [&](int64_t i) { return expected_input(i); });
      case ConvPass::wgrad: break;
    }
    return compare_exactly(*weight_, [&](int64_t i) { return expected_weight(i); });
  }

 private:
  /// The product of weight [o, c of its group, r, s] with x at the input that output (i, j) meets
  /// under that tap, and whether there is one.
  bool input_of(int64_t i, int64_t j, int64_t r, int64_t s, int64_t& y, int64_t& x) const {
    y = i * p_.stride_h - p_.pad_h + r * p_.dilation_h;
    x = j * p_.stride_w - p_.pad_w + s * p_.dilation_w;
    return y >= 0 && y < p_.ih && x >= 0 && x < p_.iw;
  }
  double weight(int64_t o, int64_t c, int64_t r, int64_t s) const {
    return (*weight_)[((o * (p_.ic / p_.groups) + c) * p_.kh + r) * p_.kw + s];
  }

  double expected_output(int64_t at) const {
    const auto [n, o, i, j] = y_.index(at);
    const int64_t channels = p_.ic / p_.groups, first = o / (p_.oc / p_.groups) * channels;
    double sum = 0;
    for (int64_t r = 0, y = 0, x = 0; r < p_.kh; ++r)
      for (int64_t s = 0; s < p_.kw; ++s)
        if (input_of(i, j, r, s, y, x))
          for (int64_t c = 0; c < channels; ++c)
            sum += (*input_)[x_.at(n, first + c, y, x)] * weight(o, c, r, s);
    return sum;
  }

  double expected_input(int64_t at) const {
    const auto [n, channel, y, x] = x_.index(at);
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
          sum += (*output_)[y_.at(n, o, i, j)] * weight(o, channel % channels, r, s);
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
            sum += (*output_)[y_.at(n, o, i, j)] * (*input_)[x_.at(n, channel, y, x)];
    return sum;
  }

  ConvPlan plan_;
  const ConvProblem& p_;
  Image x_, y_;
  Operand *input_, *output_, *weight_, *packed_;
};

}  // namespace

std::vector<ConvShape> read_conv_shapes(const Options& options, DType dtype, MemoryFormat format) {
  std::vector<ConvShape> shapes;
  for (const std::string& line : read_shapes(options.conv_shapes)) {
    ConvShape s{};
    ConvProblem& p = s.problem;
    p.n = options.batch, p.groups = 1, p.dtype = dtype, p.format = format;
    const int found =
        std::sscanf(line.c_str(),
                    "%ld ic%ldoc%ld_ih%ldoh%ldkh%ldsh%lddh%ldph%ld_iw%ldow%ldkw%ldsw%lddw%ldpw%ld",
                    &s.count, &p.ic, &p.oc, &p.ih, &p.oh, &p.kh, &p.stride_h, &p.dilation_h,
                    &p.pad_h, &p.iw, &p.ow, &p.kw, &p.stride_w, &p.dilation_w, &p.pad_w);
    check(found == 15, "bench", "{}: expected a count and a shape, got {}", options.conv_shapes,
          line);
    ++p.dilation_h, ++p.dilation_w;
    shapes.push_back(s);
  }
  return shapes;
}

std::vector<ConvProblem> read_conv_outputs(const Options& options) {
  std::set<std::pair<int64_t, int64_t>> seen;  // channels and rows
  std::vector<ConvProblem> outputs;
  for (const ConvShape& s : read_conv_shapes(options, DType::f32, MemoryFormat::channels_last))
    if (seen.insert({s.problem.oc, s.problem.oh}).second) outputs.push_back(s.problem);
  return outputs;
}

/// Pairs of an output and a tap along one axis that meet an input, not the padding.
static int64_t taps_inside(int64_t outputs, int64_t inputs, int64_t taps, int64_t stride,
                           int64_t pad, int64_t dilation) {
  int64_t inside = 0;
  for (int64_t o = 0; o < outputs; ++o)
    for (int64_t t = 0; t < taps; ++t) {
      const int64_t i = o * stride - pad + t * dilation;
      inside += i >= 0 && i < inputs;
    }
  return inside;
}

Benchmark conv_benchmark(const ConvPlan& plan) {
  constexpr const char* kFamilies[] = {"conv_fwd", "conv_dgrad", "conv_wgrad"};
  const ConvProblem& p = plan.problem;
  const auto real = [](int64_t n) { return static_cast<double>(n); };
  const double weights = real(p.oc * p.ic / p.groups * p.kh * p.kw);
  const double taps = real(taps_inside(p.oh, p.ih, p.kh, p.stride_h, p.pad_h, p.dilation_h) *
                           taps_inside(p.ow, p.iw, p.kw, p.stride_w, p.pad_w, p.dilation_w));
  const double item = real(itemsize(p.dtype));
  return {.name = fmt::format("{}/{}/{}/{}", kFamilies[static_cast<size_t>(plan.pass)], plan.name(),
                              short_name(p.format), p.to_string()),
          .dtype = p.dtype,
          .flop = 2 * real(p.n * p.oc * p.ic / p.groups) * taps,
          .nominal_flop = 2 * weights * real(p.n * p.oh * p.ow),
          .bytes = item * real(p.n * (p.ic * p.ih * p.iw + p.oc * p.oh * p.ow)) +
                   weights * (plan.pass == ConvPass::wgrad ? 4 : item),
          .make = [plan] { return std::make_unique<ConvCase>(plan); }};
}

void add_conv(const Options& options, Benchmarks& benchmarks) {
  for (ConvPass pass : {ConvPass::forward, ConvPass::dgrad, ConvPass::wgrad})
    for (DType dtype : options.dtypes)
      each_conv_kernel(options, dtype, [&](const ConvKernel& kernel, const GemmKernel& gemm) {
        for (MemoryFormat format : options.formats)
          for (const ConvShape& shape : read_conv_shapes(options, dtype, format))
            if (const ConvPlan plan{shape.problem, pass, &kernel, &gemm}; is_needed(plan))
              benchmarks.push_back(conv_benchmark(plan));
      });
}

}  // namespace quern::bench
