#include "report.h"

#include <fmt/core.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "console.h"
#include "quern/ops/float32_matmul_precision.h"
#include "quern/tensor/cpu_features.h"
#include "quern/tensor/parallel.h"

namespace resnet50 {

using namespace quern;

namespace {

constexpr size_t kWarmUp = 2;  // steps that allocate and fill caches

double seconds(std::chrono::steady_clock::duration d) {
  return std::chrono::duration<double>(d).count();
}

/// The steps after the warm-up; all, if there are no more.
std::vector<double> warm(const std::vector<double>& values) {
  return {values.begin() + (values.size() > kWarmUp ? kWarmUp : 0), values.end()};
}

/// The value that a share `p` of the warm steps stay within: the nearest rank; the mean of the
/// middle two for p = 0.5.
double percentile(const std::vector<double>& all, double p) {
  std::vector<double> values = warm(all);
  std::ranges::sort(values);
  const double rank = p * static_cast<double>(values.size());
  const auto at = [&](double i) { return values[static_cast<size_t>(std::max(0.0, i))]; };
  if (p == 0.5) return (at(std::ceil(rank) - 1) + at(std::floor(rank))) / 2;
  return at(std::ceil(rank) - 1);
}

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double peak_rss_mib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

std::string clock(double s) {
  const auto whole = static_cast<int64_t>(std::ceil(s));
  if (whole < 3600) return fmt::format("{}:{:02}", whole / 60, whole % 60);
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

/// "f32", and how it is multiplied unless that is as ever.
std::string precision() {
  const std::string_view name = get_float32_matmul_precision();
  return name == "highest" ? "f32" : fmt::format("f32 in {} precision", name);
}

}  // namespace

Report::Report(const Options& options, const Shape& input, int64_t parameters, int64_t first_step)
    : options_(options),
      input_(input),
      terminal_(isatty(STDOUT_FILENO) == 1),
      first_step_(first_step) {
  print(fmt::format("{} {}: {:.1f} M parameters, input {} {}, {}, {} threads, {} ({})\n",
                    to_string(options.mode), options.arch, static_cast<double>(parameters) / 1e6,
                    input, options.channels_last ? "channels_last" : "contiguous",
                    options.amp ? "autocast bf16" : precision(), num_threads(),
                    to_string(max_isa()), cpu_name()));
}

Report::~Report() {
  if (!finished_) leave_bar();
}

void Report::leave_bar() const {
  if (terminal_ && !losses_.empty() && done() < options_.total_steps()) print("\n");
}

void Report::begin_step() { begin_ = Clock::now(); }

void Report::data_ready() { data_ready_ = Clock::now(); }

Report::Times Report::end_step(double loss) {
  const auto end = Clock::now();
  time_.add(seconds(end - begin_));
  data_.add(seconds(data_ready_ - begin_));
  loss_.add(loss);
  step_ms_.push_back(1e3 * time_.last);
  losses_.push_back(loss);

  if (terminal_) print_bar(done());
  else if ((done() - 1) % options_.steps % options_.print_freq == 0 ||
           done() == options_.total_steps())
    print_line(done() - 1);
  return {time_.last, data_.last};
}

void Report::end_epoch(int64_t epoch, const Tally& tally) {
  const double seconds_a_step = time_.mean();
  print(fmt::format(
      "{}Epoch {}: loss {:.4f}, top-1 {:.2f}%, top-5 {:.2f}%, {:.1f} images/s, {} left\n",
      terminal_ && done() < options_.total_steps() ? "\r\x1b[K" : "", epoch, tally.mean_loss(),
      tally.top1_percent(), tally.top5_percent(), tally.images_per_second(),
      clock(seconds_a_step * static_cast<double>(options_.total_steps() - done()))));
}

void Report::print_line(int64_t step) const {
  print(fmt::format(
      "Epoch: [{}][{}/{}] Time {:.3f} ({:.3f}) Data {:.3f} ({:.3f}) Loss {:.4f} ({:.4f})\n",
      step / options_.steps, step % options_.steps + 1, options_.steps, time_.last, time_.mean(),
      data_.last, data_.mean(), loss_.last, loss_.mean()));
}

void Report::print_bar(int64_t done) const {
  constexpr int64_t width = 24;
  const int64_t total = options_.total_steps();
  const auto filled =
      static_cast<size_t>(static_cast<double>(width * done) / static_cast<double>(total));
  const double mean = time_.mean();
  print(fmt::format("\r{}/{} [{}{}] loss {:.4f}  {:.1f} samples/s  {} left\x1b[K{}", done, total,
                    std::string(filled, '='), std::string(width - filled, ' '), loss_.last,
                    static_cast<double>(input_[0]) / mean,
                    clock(mean * static_cast<double>(total - done)), done == total ? "\n" : ""));
}

double Report::samples_per_second() const {
  if (step_ms_.empty()) return 0;
  return static_cast<double>(input_[0]) * 1e3 / percentile(step_ms_, 0.5);
}

Price Report::price() const { return {*options_.price_per_hour, samples_per_second()}; }

void Report::finish() {
  finished_ = true;
  leave_bar();
  if (losses_.empty()) return print("no step was left\n");
  print(fmt::format(
      "loss {:.4f} -> {:.4f}, {:.2f} samples/s, median step {:.1f} ms, peak memory {:.0f} MiB\n",
      losses_.front(), losses_.back(), samples_per_second(), percentile(step_ms_, 0.5),
      peak_rss_mib()));
  if (options_.mode == Mode::infer) {
    const std::string of = fmt::format("(of {})", warm(step_ms_).size());
    print(fmt::format(
        "latency: mean {:.2f} ms {of}, p50 {:.2f} {of}, p90 {:.2f} {of}, p99 {:.2f} {of}\n",
        mean(warm(step_ms_)), percentile(step_ms_, 0.5), percentile(step_ms_, 0.9),
        percentile(step_ms_, 0.99), fmt::arg("of", of)));
  }
  if (options_.price_per_hour) print(price().describe());
}

std::string Report::json() const {
  nlohmann::ordered_json json = {
      {"mode", to_string(options_.mode)},
      {"arch", options_.arch},
      {"batch_size", input_[0]},
      {"image_size", input_[2]},
      {"amp", options_.amp},
      {"matmul_precision", get_float32_matmul_precision()},
      {"channels_last", options_.channels_last},
      {"threads", num_threads()},
      {"isa", to_string(max_isa())},
      {"steps", losses_.size()},
      {"step_ms", step_ms_},
      {"loss", losses_},
      {"samples_per_second", samples_per_second()},
      {"peak_rss_mib", peak_rss_mib()},
  };
  if (input_[2] != input_[3]) json["image_size"] = {input_[2], input_[3]};
  if (options_.mode == Mode::infer && !step_ms_.empty())
    json["latency_ms"] = {{"mean", mean(warm(step_ms_))},
                          {"p50", percentile(step_ms_, 0.5)},
                          {"p90", percentile(step_ms_, 0.9)},
                          {"p99", percentile(step_ms_, 0.99)},
                          {"samples", warm(step_ms_).size()}};
  if (options_.price_per_hour && !step_ms_.empty()) price().add_to(json);
  return json.dump(2) + "\n";
}

}  // namespace resnet50
