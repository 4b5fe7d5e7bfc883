#include "train.h"

#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "checkpoints.h"
#include "console.h"
#include "data.h"
#include "evaluate.h"
#include "model.h"
#include "profile.h"
#include "progress.h"
#include "quern/nn/loss.h"
#include "quern/nn/safetensors.h"
#include "quern/ops/autocast.h"
#include "quern/ops/binary.h"
#include "quern/optim/clip_grad.h"
#include "quern/optim/ema.h"
#include "quern/tensor/raw.h"
#include "quern/tensor/span.h"
#include "recipe.h"
#include "report.h"
#include "run_log.h"
#include "signals.h"
#include "write_text.h"

namespace resnet50 {

using namespace quern;

namespace {

class Trainer {
 public:
  Trainer(const Options& options, Data& data)
      : options_(options),
        loader_(*data.training),
        evaluation_(data.evaluation.get()),
        network_(make_model(options)),
        optimizer_(make_optimizer(options, model_)),
        schedule_(make_schedule(options)) {
    if (options.model_ema) ema_.emplace(model_.state_dict(), options.model_ema_decay);
    if (!options.output_dir.empty()) checkpoints_.emplace(options, loader_.classes());
  }

  void run() {
    if (checkpoints_) {
      checkpoints_->resume(state());
      log_.emplace(options_.output_dir + "/log.csv", epoch(), step_in_epoch());
      saved_at_ = progress_.step;
      catch_stop_signals();
    }
    if (progress_.step > 0) loader_.start_at(epoch(), step_in_epoch());
    Report report(options_, loader_.shape(), count_parameters(model_), progress_.step);
    Profile profile(options_, options_.total_steps() - progress_.step);
    while (progress_.step < options_.total_steps()) {
      train_batch(report);
      if (step_in_epoch() == 0) end_epoch(report);
      else if (is_updated()) save_if_due();
      if (is_updated() && stop_signal() != nullptr) return stop(report);
      profile.end_step();
    }
    report.finish();
    profile.finish();
    require_saved();
    write_outputs(report);
  }

 private:
  int64_t epoch() const { return progress_.step / options_.steps; }
  int64_t step_in_epoch() const { return progress_.step % options_.steps; }
  Run state() { return {model_, *optimizer_, ema_ ? &*ema_ : nullptr, progress_}; }

  /// Have all batches so far entered an update of the weights?
  bool is_updated() const { return step_in_epoch() % options_.accum_steps == 0; }

  /// One batch: the first of --accum-steps forgets the gradients, the last, or that of the epoch,
  /// updates the weights by their mean.
  void train_batch(Report& report) {
    const int64_t at = step_in_epoch(), first = at - at % options_.accum_steps;
    const int64_t batches = std::min(options_.accum_steps, options_.steps - first);
    const double lr = schedule_(epoch());
    report.begin_step();
    batch_ = next_batch();
    const auto& [input, target, other, share] = batch_;
    report.data_ready();

    if (at == first) optimizer_->zero_grad();
    Tensor loss;
    {
      const AutocastGuard autocast(options_.amp);
      logits_ = model_(input);
      loss = criterion_(logits_, target);
      if (other.defined()) loss = loss * share + criterion_(logits_, other) * (1 - share);
    }
    if (batches == 1) loss.backward();
    else (loss * (1 / static_cast<double>(batches))).backward();
    if (at == first + batches - 1) update(lr);
    ++progress_.step;

    const Hits hits = count_hits(logits_, target);
    const Report::Times times = report.end_step(loss.item());
    for (Tally* tally : {&progress_.epoch, &progress_.interval})
      tally->add(input.size(0), loss.item(), hits, times.step, times.data);
    if (log_ && ((at + 1) % options_.print_freq == 0 || at + 1 == options_.steps)) {
      log_->add((progress_.step - 1) / options_.steps, at + 1, lr, progress_.interval);
      progress_.interval = {};
    }
  }

  /// A picture that is broken ends the run, but not what it has learnt.
  template <typename Read>
  auto reading_pictures(Read read) {
    try {
      return read();
    } catch (const Error&) {
      if (checkpoints_ && is_updated() && saved_at_ != progress_.step) save(false);
      throw;
    }
  }

  Batch next_batch() {
    const Span span("data");
    batch_ = {};  // before the loader begins another in its place
    return reading_pictures([&] { return loader_.next(); });
  }

  void update(double lr) {
    if (options_.clip_grad_norm)
      optim::clip_grad_norm_(model_.parameters(), *options_.clip_grad_norm);
    optimizer_->set_lr(lr);
    optimizer_->step();
    if (ema_) ema_->update(model_.state_dict());
  }

  void end_epoch(Report& report) {
    say_if_decoding_is_slow();
    report.end_epoch(epoch() - 1, progress_.epoch);
    const double loss = progress_.epoch.mean_loss();
    progress_.epoch = {};
    const double quality = evaluation_ == nullptr
                               ? -loss
                               : reading_pictures([&] { return evaluate().top1_percent(); });
    const bool is_best = quality > progress_.best;
    if (is_best) progress_.best = quality;
    if (checkpoints_) save(is_best);
  }

  void say_if_decoding_is_slow() {
    const double share = progress_.epoch.data_seconds / progress_.epoch.seconds;
    if (share < 0.1 || said_slow_ || options_.data.empty()) return;
    said_slow_ = true;
    print_error(fmt::format("note: steps waited for pictures {:.0f}% of the time: {}", 100 * share,
                            options_.worker_threads() > 0 ? "all cores decode or compute"
                                                          : "-j N decodes beside them"));
  }

  /// The weights, or their average where one is taken, on the pictures held out.
  Tally evaluate() {
    struct Kept {
      ~Kept() {
        if (weights.size() > 0) model.load_state_dict(weights);
      }
      nn::Module& model;
      TensorDict weights;
    } kept{model_, {}};
    if (ema_) {
      for (const auto& [name, tensor] : model_.state_dict())
        kept.weights.insert(name, raw::clone(tensor));
      model_.load_state_dict(ema_->averages());
    }
    const Span span("evaluation");
    const Tally tally = resnet50::evaluate(model_, *evaluation_, options_);
    print(fmt::format("  held out: {}\n", describe(tally)));
    return tally;
  }

  void save_if_due() {
    const int64_t every = options_.checkpoint_every;
    if (checkpoints_ && every > 0 && progress_.step / every > saved_at_ / every) save(false);
  }

  void save(bool is_best) {
    const Span span("checkpoint");
    log_->sync();
    is_saved_ = checkpoints_->save(state(), is_best);
    saved_at_ = progress_.step;
  }

  /// A last checkpoint that was not written is a failure.
  void require_saved() const {
    check(is_saved_, "train", "--output-dir: expected to write a checkpoint to {}, and could not",
          options_.output_dir);
  }

  void stop(Report& report) {
    if (saved_at_ != progress_.step || !is_saved_) save(false);
    report.finish();
    require_saved();
    print(fmt::format("stopped by {} at step {} of {}: --resume auto goes on\n", stop_signal(),
                      progress_.step, options_.total_steps()));
  }

  TensorDict gradients() const {
    TensorDict grads;
    for (const auto& [name, parameter] : model_.named_parameters())
      grads.insert(name, parameter.grad());
    return grads;
  }

  void write_outputs(const Report& report) const {
    if (!options_.save.empty())
      save_safetensors(options_.save, ema_ ? ema_->averages() : model_.state_dict(),
                       classes_metadata(loader_.classes()));
    for (const auto& [option, path] : {std::pair{"--dump-grads", options_.dump_grads},
                                       std::pair{"--dump-input", options_.dump_input},
                                       std::pair{"--dump-output", options_.dump_output}})
      check(path.empty() || logits_.defined(), "train", "{}: expected a step to be left, got none",
            option);
    if (!options_.dump_grads.empty()) save_safetensors(options_.dump_grads, gradients());
    if (!options_.dump_input.empty()) save_batch(options_.dump_input, batch_);
    if (!options_.dump_output.empty())
      save_safetensors(options_.dump_output, {{"logits", raw::to(logits_.detach(), DType::f32)}});
    if (!options_.json.empty()) write_text(options_.json, report.json());
  }

  const Options& options_;
  DataLoader& loader_;
  DataLoader* const evaluation_;  // may be null
  const std::unique_ptr<nn::Module> network_;
  nn::Module& model_ = *network_;
  const nn::CrossEntropyLoss criterion_{.label_smoothing = options_.label_smoothing};
  const std::unique_ptr<optim::Optimizer> optimizer_;
  const optim::Schedule schedule_;
  std::optional<optim::ModelEma> ema_;
  std::optional<Checkpoints> checkpoints_;
  std::optional<RunLog> log_;
  Progress progress_;
  Batch batch_;  // of the last step
  Tensor logits_;
  int64_t saved_at_ = 0;
  bool is_saved_ = true, said_slow_ = false;
};

}  // namespace

void train(const Options& options, Data& data) { Trainer(options, data).run(); }

}  // namespace resnet50
