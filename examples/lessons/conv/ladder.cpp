// Makes kernels of the steps: brings tensors into a step's format, makes a convolution of dgrad,
// and completes the sums.
#include "conv/ladder.h"

#include <array>
#include <utility>

#include "frame.h"
#include "quern/ops/kernels/table.h"
#include "quern/tensor/cpu_features.h"

namespace quern::lessons {

using namespace kernels;

const ConvLesson& who_does(size_t step, const ConvProblem& problem, ConvPass pass) {
  while (!kConvLessons[step].takes(problem, pass)) --step;  // step 0 takes all
  return kConvLessons[step];
}

namespace {

// [turned]
/// dgrad as a convolution: of dy, with stride - 1 zeros between its pixels, by the filters turned
/// by 180°, whose inputs and outputs change places.
ConvProblem turned(ConvProblem p) {
  std::swap(p.ic, p.oc);
  const ConvProblem of_x = p;
  p.ih = (p.oh - 1) * p.stride_h + 1, p.iw = (p.ow - 1) * p.stride_w + 1;
  p.oh = of_x.ih, p.ow = of_x.iw;
  p.pad_h = p.dilation_h * (p.kh - 1) - p.pad_h, p.pad_w = p.dilation_w * (p.kw - 1) - p.pad_w;
  p.stride_h = p.stride_w = 1;
  return p;
}
// [end]

void turn_filters(const ConvProblem& p, const float* w, float* to) {
  const int64_t area = p.kh * p.kw;
  parallel_for(p.ic, [&](int64_t c) {
    for (int64_t o = 0; o < p.oc; ++o)
      for (int64_t tap = 0; tap < area; ++tap)
        to[(c * p.oc + o) * area + tap] = w[(o * p.ic + c) * area + area - 1 - tap];
  });
}

class StepPlan final : public ConvPlan {
 public:
  StepPlan(const ConvChoice& choice, size_t step)
      : ConvPlan(choice), step_(who_does(step, problem, pass)), p_(problem) {
    p_.format = step_.format;
  }
  int64_t packed_bytes() const override {
    return pass == ConvPass::wgrad ? 0 : step_.count(as_convolution()) * int64_t{sizeof(float)};
  }
  void pack(const void* weight, DType, void* packed) const override {
    if (pass == ConvPass::wgrad) return;
    const auto* w = static_cast<const float*>(weight);
    auto* filters = static_cast<float*>(packed);
    if (pass == ConvPass::forward) return step_.pack(p_, w, filters);
    const Workspace turned_w(count_as_they_are(p_) * int64_t{sizeof(float)});
    turn_filters(p_, w, turned_w.as<float>());
    step_.pack(as_convolution(), turned_w.as<float>(), filters);
  }

 private:
  ConvProblem as_convolution() const { return pass == ConvPass::dgrad ? turned(p_) : p_; }
  static Image x_of(const ConvProblem& p) { return {p.format, p.n, p.ic, p.ih, p.iw}; }
  static Image y_of(const ConvProblem& p) { return {p.format, p.n, p.oc, p.oh, p.ow}; }

  void compute(const void* from, const void* with, void* to, const Epilogue& epilogue,
               const ChannelMap& prologue) const override {
    const auto *source = static_cast<const float*>(from), *other = static_cast<const float*>(with);
    auto* const out = static_cast<float*>(to);
    const bool dgrad = pass == ConvPass::dgrad;
    const Arranged<float> in(dgrad ? y_of(problem) : x_of(problem), dgrad ? y_of(p_) : x_of(p_),
                             source, prologue);
    if (pass == ConvPass::wgrad) {
      const Arranged<float> dy(y_of(problem), y_of(p_), other);
      return step_.gradient(p_, in.data(), dy.data(), out);
    }
    const Image image = dgrad ? x_of(problem) : y_of(problem), sums = dgrad ? x_of(p_) : y_of(p_);
    if (epilogue.kind == Epilogue::Kind::store && !epilogue.residual &&
        image.strides.c == sums.strides.c)
      return sum_up(in.data(), other, out);
    const Workspace room(sums.pixels * sums.channels * int64_t{sizeof(float)});
    sum_up(in.data(), other, room.as<float>());
    complete(image, sums, room.as<float>(), epilogue, out);
  }
  void sum_up(const float* source, const float* filters, float* sums) const {
    if (pass == ConvPass::forward) return step_.convolve(p_, source, filters, sums);
    if (step_.phases) return step_.phases(p_, source, filters, sums);
    const ConvProblem c = turned(p_);
    if (p_.stride_h == 1 && p_.stride_w == 1) return step_.convolve(c, source, filters, sums);
    const Image dy = y_of(p_), spread = x_of(c);
    const Workspace room(spread.pixels * spread.channels * int64_t{sizeof(float)});
    std::fill_n(room.as<float>(), spread.pixels * spread.channels, 0.0f);
    parallel_for(dy.pixels, [&](int64_t pixel) {
      const int64_t row = pixel / p_.ow, n = row / p_.oh;
      const int64_t to =
          spread.at((n * c.ih + row % p_.oh * p_.stride_h) * c.iw + pixel % p_.ow * p_.stride_w);
      for (int64_t o = 0; o < p_.oc; ++o)
        room.as<float>()[to + o * spread.strides.c] = source[dy.at(pixel) + o * dy.strides.c];
    });
    step_.convolve(c, room.as<float>(), filters, sums);
  }

  const ConvLesson& step_;
  ConvProblem p_;  // in the step's format
};

/// The i-th step as a kernel of convolutions.
template <size_t i>
constexpr ConvKernel kernel_of{
    .name = kConvLessons[i].name,
    .why_not = [](const ConvProblem& p, ConvPass, const GemmKernel&) -> const char* {
      if (p.dtype != DType::f32) return "it convolves f32";
      if (p.groups != 1) return "it takes no groups";
      if (p.x_gap != 0 || p.y_gap != 0) return "it takes no gaps between rows";
      if (!isa_enabled(kConvLessons[i].isa))
        return "its instructions are missing, or above QUERN_MAX_CPU_ISA";
      return nullptr;
    },
    .plan = [](const ConvChoice& choice) -> std::unique_ptr<const ConvPlan> {
      return std::make_unique<const StepPlan>(choice, i);
    },
    .on_micro_kernels = false};

template <size_t... i>
constexpr auto kernels_of(std::index_sequence<i...>) {
  return std::array{kernel_of<i>...};
}
constexpr auto kKernels = kernels_of(std::make_index_sequence<kConvSteps>());

[[maybe_unused]] const bool kAdded = [] {
  for (const ConvKernel& kernel : kKernels) add_kernel(kernel);
  return true;
}();

}  // namespace

std::span<const ConvKernel> conv_lesson_kernels() { return kKernels; }

}  // namespace quern::lessons
