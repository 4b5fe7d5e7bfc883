// One step of each optimizer over as many parameters as ResNet-50 has.
#include <array>
#include <vector>

#include "quern/ops/kernels/optim/update.h"
#include "quern/tensor/parallel.h"
#include "suite.h"

namespace quern::bench {
namespace {

using namespace kernels;

constexpr int64_t kParameters = 25'557'032;
constexpr int64_t kChunk = 16384;  // as optim/update_pass.h cuts them

constexpr SgdStep kSgd{.lr = 1e-3,
                       .momentum = 0.9,
                       .dampening = 0,
                       .weight_decay = 1e-4,
                       .nesterov = false,
                       .first = false};
constexpr AdamWStep kAdamW{
    .decay = 1 - 1e-5, .beta1 = 0.9, .beta2 = 0.999, .step_size = 1e-3, .scale = 1, .eps = 1e-8};

constexpr RmspropStep kRmsprop{
    .lr = 1e-4, .alpha = 0.9, .eps = 0.0316, .momentum = 0.9, .weight_decay = 1e-4};

template <class Step>
class UpdateCase : public Case {
 public:
  UpdateCase(const UpdateKernel<Step>& kernel, const UpdateKernel<Step>& reference,
             const Step& step, int states)
      : kernel_(kernel),
        reference_(reference),
        step_(step),
        operands_{&uniform(kernel.dtype, kParameters), &uniform(DType::f32, kParameters),
                  &uniform(DType::f32, kParameters),
                  &uniform(DType::f32, states == 2 ? kParameters : 0)} {
    for (int64_t i = 0; i < kParameters; i += kParameters / 200) samples_.push_back(sample(i));
  }

  void run() override {
    parallel_chunks(kParameters, kChunk, [&](int64_t begin, int64_t end) {
      const auto at = [&](size_t o) {
        return operands_[o]->count() > 0 ? operands_[o]->at(begin) : nullptr;
      };
      kernel_.run(step_, {at(0), at(1), {at(2), at(3)}, end - begin});
    });
  }

  /// Against the reference in f64: no formula has more than 12 operations on its way, of numbers
  /// below 2 (the step of AdamW is below step_size times 1 / sqrt(1e-3 · grad²) < 1).
  std::string wrong() override {
    for (Sample s : samples_) {
      auto& [param, grad, first, second] = s.values;
      reference_.run(step_, {&param, &grad, {&first, &second}, 1});
      const Sample got = sample(s.at);
      for (size_t o = 0; o < operands_.size(); ++o) {
        if (operands_[o]->count() == 0) continue;
        const double bound = 12 * 0x1p-24 * 2 + unit_roundoff(operands_[o]->dtype());
        if (!(std::abs(got.values[o] - s.values[o]) <= bound))
          return fmt::format("element {} of operand {} is {}, expected {}", s.at, o, got.values[o],
                             s.values[o]);
      }
    }
    return {};
  }

 private:
  struct Sample {
    int64_t at;
    std::array<double, 4> values;
  };
  Sample sample(int64_t i) const {
    Sample s{i, {}};
    for (size_t o = 0; o < operands_.size(); ++o)
      if (operands_[o]->count() > 0) s.values[o] = (*operands_[o])[i];
    return s;
  }

  const UpdateKernel<Step>&kernel_, &reference_;
  Step step_;
  std::array<Operand*, 4> operands_;  // parameter, gradient, states
  std::vector<Sample> samples_;       // before the first run
};

template <class Step>
void add_records(const Options& options, std::span<const UpdateKernel<Step>* const> list,
                 std::string_view family, const Step& step, int states, Benchmarks& benchmarks) {
  using Kernel = UpdateKernel<Step>;
  const Kernel& reference = select_update<Kernel>(family, DType::f64);
  for (DType dtype : options.dtypes)
    each_wanted(
        options, list, select_update<Kernel>(family, dtype),
        [&](const Kernel& k) { return k.dtype == dtype; },
        [&](const Kernel& kernel) {
          // The parameter and the states are read and written, the f32 gradient is read.
          const auto bytes = static_cast<double>(2 * itemsize(dtype) + 4 + 8 * states);
          benchmarks.push_back({.name = fmt::format("optimizer/{}/n{}", kernel.name, kParameters),
                                .dtype = dtype,
                                .flop = 0,
                                .bytes = bytes * static_cast<double>(kParameters),
                                .make = [&, step, states] {
                                  return std::make_unique<UpdateCase<Step>>(kernel, reference, step,
                                                                            states);
                                }});
        });
}

}  // namespace

void add_optimizer(const Options& options, Benchmarks& benchmarks) {
  add_records<SgdStep>(options, table<SgdKernel>(), "sgd", kSgd, 1, benchmarks);
  add_records<AdamWStep>(options, table<AdamWKernel>(), "adamw", kAdamW, 2, benchmarks);
  add_records<RmspropStep>(options, table<RmspropKernel>(), "rmsprop", kRmsprop, 2, benchmarks);
}

}  // namespace quern::bench
