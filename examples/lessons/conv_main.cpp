// quern_conv_lessons: times the steps of the lesson on convolution on one layer, all three passes,
// and checks what they computed. On one thread, whose time the CPU itself counts. lessons.py makes
// tables of it, which ./dev lessons prints.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <map>
#include <memory>
#include <random>

#include "conv/ladder.h"
#include "peaks.h"
#include "quern/tensor/check.h"
#include "quern/tensor/cpu_features.h"
#include "quern/tensor/parallel.h"
#include "quern/tensor/storage.h"
#include "timing.h"

using namespace quern;
using namespace quern::lessons;
using namespace quern::kernels;

namespace {

/// A 3×3 layer of ResNet-50; with a stride of 2 the first of its kind.
ConvProblem layer(int64_t images, int64_t channels, int64_t size, int64_t stride,
                  MemoryFormat format) {
  return {.n = images,
          .ic = channels,
          .ih = size * stride,
          .iw = size * stride,
          .oc = channels,
          .oh = size,
          .ow = size,
          .kh = 3,
          .kw = 3,
          .stride_h = stride,
          .stride_w = stride,
          .pad_h = 1,
          .pad_w = 1,
          .dilation_h = 1,
          .dilation_w = 1,
          .groups = 1,
          .dtype = DType::f32,
          .format = format};
}

/// A pass of a layer by one kernel, with numbers drawn at random.
class Pass {
 public:
  Pass(const ConvChoice& choice)
      : plan_(plan_conv(choice)),
        p_(choice.problem),
        x_(p_.n * p_.ic * p_.ih * p_.iw * kFloat),
        w_(p_.oc * p_.ic * p_.kh * p_.kw * kFloat),
        y_(p_.n * p_.oc * p_.oh * p_.ow * kFloat),
        packed_(plan_->packed_bytes()) {
    std::mt19937 random(1);
    std::uniform_real_distribution<float> uniform(-1, 1);
    const auto draw = [&](const Workspace& room, int64_t count) {
      std::generate_n(room.as<float>(), count, [&] { return uniform(random); });
    };
    draw(x_, p_.n * p_.ic * p_.ih * p_.iw);
    draw(w_, p_.oc * p_.ic * p_.kh * p_.kw);
    draw(y_, p_.n * p_.oc * p_.oh * p_.ow);
    plan_->pack(w_.as<float>(), DType::f32, packed_.as<void>());
  }
  void run() const {
    void *const x = x_.as<void>(), *const w = w_.as<void>(), *const y = y_.as<void>();
    if (plan_->pass == ConvPass::forward) plan_->run(x, packed_.as<void>(), y);
    if (plan_->pass == ConvPass::dgrad) plan_->run(y, packed_.as<void>(), x);
    if (plan_->pass == ConvPass::wgrad) plan_->run(x, y, w);
  }
  /// What run() writes: the same numbers, in the order of the format.
  std::pair<const float*, int64_t> result() const {
    if (plan_->pass == ConvPass::forward) return {y_.as<float>(), p_.n * p_.oc * p_.oh * p_.ow};
    if (plan_->pass == ConvPass::dgrad) return {x_.as<float>(), p_.n * p_.ic * p_.ih * p_.iw};
    return {w_.as<float>(), p_.oc * p_.ic * p_.kh * p_.kw};
  }

 private:
  static constexpr int64_t kFloat = sizeof(float);
  std::unique_ptr<const ConvPlan> plan_;
  ConvProblem p_;
  Workspace x_, w_, y_, packed_;
};

/// Distance from what the library's kernel computes, by norm: the errors of either are some
/// roundoffs of the sums' terms (Winograd's some dozens).
void check_result(const ConvChoice& choice) {
  const Pass step(choice), library(choose_conv(choice.problem, choice.pass));
  step.run(), library.run();
  const auto [got, count] = step.result();
  const auto [expected, same] = library.result();
  double distance = 0, norm = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double difference = static_cast<double>(got[i]) - static_cast<double>(expected[i]);
    distance += difference * difference;
    norm += static_cast<double>(expected[i]) * static_cast<double>(expected[i]);
  }
  const double relative = std::sqrt(distance / norm);
  check(relative < 1e-5, choice.kernel->name, "expected the library's result, got one {} off",
        relative);
}

struct PassToTime {
  const char* name;
  ConvPass pass;
  int64_t stride;
};
constexpr PassToTime kPasses[] = {{"forward", ConvPass::forward, 1},
                                  {"dgrad", ConvPass::dgrad, 2},
                                  {"wgrad", ConvPass::wgrad, 1}};

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Times the steps of the lesson on convolution; prints JSON");
  std::vector<size_t> steps;
  app.add_option("--step", steps, "Only these; 8 is the library's kernel [all]")
      ->check(CLI::Range(size_t{0}, kConvSteps));
  std::vector<int64_t> sizes{4, 256, 14};
  app.add_option("--layer", sizes, "images, channels, height of the output [4 256 14]")
      ->expected(3)
      ->check(CLI::PositiveNumber);
  Turns turns(app);
  CLI11_PARSE(app, argc, argv);
  try {
    set_num_threads(1);
    const double peak = bench::measure_peaks().gflops(DType::f32);
    std::vector<Row> rows;
    nlohmann::json all = nlohmann::json::array(), missing = nlohmann::json::array();
    for (size_t step = 0; step <= kConvSteps; ++step) {
      if (!steps.empty() && std::ranges::count(steps, step) == 0) continue;
      const bool library = step == kConvSteps;
      const ConvLesson* const lesson = library ? nullptr : &kConvLessons[step];
      const MemoryFormat format = library ? MemoryFormat::channels_last : lesson->format;
      const std::string name = library ? "" : lesson->name;
      const std::string title = library ? "the library's" : lesson->title;
      if (lesson && !isa_enabled(lesson->isa)) {
        missing.push_back(
            {{"step", step}, {"title", title}, {"reason", why_disabled(lesson->isa)}});
        continue;
      }
      const ConvPass about = library ? ConvPass::forward : lesson->about;
      for (const PassToTime& timed : kPasses) {
        const ConvProblem problem = layer(sizes[0], sizes[1], sizes[2], timed.stride, format);
        ConvChoice choice = choose_conv(problem, timed.pass);
        if (!library) choice.kernel = &conv_kernel(name), check_result(choice);
        const auto pass = std::make_shared<const Pass>(choice);
        rows.push_back(
            {{{"step", step},
              {"name", name},
              {"title", title},
              {"threads", num_threads()},
              {"pass", timed.name},
              {"about", about == timed.pass},
              {"kernel", choice.name()},
              {"peak_gflops", peak}},
             static_cast<double>(problem.flop()),
             [pass](double turn) { return median_seconds(turn, [&] { pass->run(); }); }});
      }
    }
    time_rows(rows, turns);
    for (const Row& row : rows) all.push_back(row.json);
    fmt::print("{}\n", nlohmann::json{{"cpu", cpu_name()},
                                      {"isa", to_string(max_isa())},
                                      {"images", sizes[0]},
                                      {"channels", sizes[1]},
                                      {"size", sizes[2]},
                                      {"rows", all},
                                      {"missing", missing}}
                           .dump(2));
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 1;
  }
}
