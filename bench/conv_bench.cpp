#include "conv_bench.h"

#include <cstdio>
#include <set>

namespace quern::bench {
using namespace kernels;

std::vector<ConvShape> read_conv_shapes(const Options& options, DType dtype, MemoryFormat format) {
  std::vector<ConvShape> shapes;
  for (const std::string& line : read_shapes(options.conv_shapes)) {
    ConvShape s{};
    ConvProblem& p = s.problem;
    p.n = options.batch, p.groups = 1, p.dtype = dtype, p.format = format;
    std::string ungrouped = line;
    if (const size_t at = line.find(" g"); at != std::string::npos) {
      std::sscanf(line.c_str() + at, " g%ld", &p.groups);
      ungrouped.erase(at + 1, line.find("ic") - at - 1);
    }
    const int found =
        std::sscanf(ungrouped.c_str(),
                    "%ld ic%ldoc%ld_ih%ldoh%ldkh%ldsh%lddh%ldph%ld_iw%ldow%ldkw%ldsw%lddw%ldpw%ld",
                    &s.count, &p.ic, &p.oc, &p.ih, &p.oh, &p.kh, &p.stride_h, &p.dilation_h,
                    &p.pad_h, &p.iw, &p.ow, &p.kw, &p.stride_w, &p.dilation_w, &p.pad_w);
    check(found == 15 && p.groups >= 1, "bench", "{}: expected a count and a shape, got {}",
          options.conv_shapes, line);
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

std::string short_shape(const ConvProblem& p) {
  return fmt::format("{}x{} {}->{} @{}{}", p.kh, p.kw, p.ic, p.oc, p.ih,
                     p.stride_h == 1 ? "" : fmt::format(" /{}", p.stride_h));
}

namespace {

/// Pairs of an output and a tap along one axis that meet an input, not the padding.
int64_t taps_inside(int64_t outputs, int64_t inputs, int64_t taps, int64_t stride, int64_t pad,
                    int64_t dilation) {
  int64_t inside = 0;
  for (int64_t o = 0; o < outputs; ++o)
    for (int64_t t = 0; t < taps; ++t) {
      const int64_t i = o * stride - pad + t * dilation;
      inside += i >= 0 && i < inputs;
    }
  return inside;
}

}  // namespace

Benchmark conv_benchmark(const Options& options, const ConvChoice& choice, bool both) {
  constexpr const char* kFamilies[] = {"conv_fwd", "conv_dgrad", "conv_wgrad"};
  const ConvProblem& p = choice.problem;
  const auto real = [](int64_t n) { return static_cast<double>(n); };
  const double weights = real(p.oc * p.ic / p.groups * p.kh * p.kw);
  const double taps = real(taps_inside(p.oh, p.ih, p.kh, p.stride_h, p.pad_h, p.dilation_h) *
                           taps_inside(p.ow, p.iw, p.kw, p.stride_w, p.pad_w, p.dilation_w));
  const double item = real(itemsize(p.dtype));
  const bool fused = options.fused, reads_x_too = (fused && choice.pass == ConvPass::dgrad) || both;
  const double products = both ? 2 : 1;
  const char* family = both ? "conv_bwd" : kFamilies[static_cast<size_t>(choice.pass)];
  return {.name = fmt::format("{}{}/{}/{}/{}", family, fused ? "_fused" : "", choice.name(),
                              short_name(p.format), p.to_string()),
          .dtype = choice.gemm->a,
          .flop = products * 2 * real(p.n * p.oc * p.ic / p.groups) * taps,
          .nominal_flop = products * 2 * weights * real(p.n * p.oh * p.ow),
          .bytes =
              item * real(p.n * ((reads_x_too ? 2 : 1) * p.ic * p.ih * p.iw + p.oc * p.oh * p.ow)) +
              weights * (choice.pass == ConvPass::wgrad ? 4 : item) + (both ? weights * 4 : 0),
          .make = [choice, fused, both] { return conv_case(choice, fused, both); }};
}

void add_conv(const Options& options, Benchmarks& benchmarks) {
  for (ConvPass pass : {ConvPass::forward, ConvPass::dgrad, ConvPass::wgrad})
    for (DType dtype : options.dtypes)
      each_conv_way(options, dtype, [&](const ConvWay& way) {
        for (MemoryFormat format : options.formats)
          for (const ConvShape& shape : read_conv_shapes(options, dtype, format))
            if (const ConvChoice choice = way.choice(shape.problem, pass); is_needed(choice)) {
              benchmarks.push_back(conv_benchmark(options, choice));
              if (plan_conv(choice)->differentiates_at_once())
                benchmarks.push_back(conv_benchmark(options, choice, true));
            }
      });
}

}  // namespace quern::bench
