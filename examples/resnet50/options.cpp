#include "options.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <set>

#include "console.h"
#include "quern/nn/network.h"
#include "quern/tensor/parallel.h"

namespace resnet50 {
namespace {

constexpr int64_t kMaxInteger = std::numeric_limits<int64_t>::max();

/// Integers of low..high.
CLI::Validator integer(int64_t low, int64_t high = kMaxInteger) {
  const auto expected = high == kMaxInteger ? fmt::format("an integer of at least {}", low)
                                            : fmt::format("an integer in {}..{}", low, high);
  return {[=](const std::string& text) -> std::string {
            int64_t value = 0;  // CLI11 takes the nearest integer for one that does not fit
            const char* end = text.data() + text.size();
            const auto parsed = std::from_chars(text.data(), end, value);
            const bool ok =
                parsed.ec == std::errc() && parsed.ptr == end && value >= low && value <= high;
            return ok ? "" : fmt::format("expected {}, got {}", expected, text);
          },
          ""};
}

/// Finite numbers of at least 0 and less than `limit`; NaN is none.
CLI::Validator number(double limit = std::numeric_limits<double>::infinity()) {
  const auto expected = limit <= 1 ? fmt::format("a number of at least 0 and less than {}", limit)
                                   : "a finite number of at least 0";
  return {[=](const std::string& text) -> std::string {
            double value = 0;
            const bool ok = CLI::detail::lexical_cast(text, value) && value >= 0 && value < limit;
            return ok ? "" : fmt::format("expected {}, got {}", expected, text);
          },
          ""};
}

/// So that an unset variable of the shell is not taken for an option not given.
std::string named(const std::string& path) {
  return path.empty() ? "expected the name of a file, got none" : "";
}

/// What an hour may cost: nothing that would make images free.
std::string is_price(const std::string& text) {
  double value = 0;
  const bool ok = CLI::detail::lexical_cast(text, value) && value > 0 && std::isfinite(value);
  return ok ? "" : "expected a finite number of more than 0, got " + text;
}

void add_common(CLI::App& app, Options& o) {
  app.option_defaults()->group("Network");
  app.add_option("--arch", o.arch, "Network")
      ->check(CLI::IsMember(std::set<std::string>(quern::nn::network_names().begin(),
                                                  quern::nn::network_names().end())))
      ->capture_default_str();
  app.add_option("--weights", o.weights,
                 "Start from this state_dict (torchvision's names): safetensors, .pth or .pt")
      ->type_name("FILE")
      ->check(named);
  app.add_option("--num-classes", o.num_classes, "Classes that the network tells apart")
      ->check(integer(1, 1 << 20))
      ->each([&o](const std::string&) { o.num_classes_given = true; })
      ->capture_default_str();
  app.add_flag("--amp", o.amp, "Autocast to bf16");
  app.add_option("--matmul-precision", o.matmul_precision, "How f32 is multiplied [highest]")
      ->check(CLI::IsMember({"highest", "high", "medium"}));
  app.add_flag("--channels-last", o.channels_last, "Images and activations as N, H, W, C");
  app.add_flag("--no-fuse", o.no_fuse, "Op by op instead of one op a block");
  app.add_flag("--no-drop", o.no_drop, "Train without dropout and stochastic depth");
  app.add_option("--threads", o.threads, "Threads [one a core]")->check(integer(1, 1024));
  app.add_option("--seed", o.seed, "Seed of weights and fake images")
      ->check(integer(0))
      ->capture_default_str();

  app.option_defaults()->group("Data");
  auto* dummy = app.add_flag("--dummy")->description("Fake data, the default");
  app.add_option("-b,--batch-size", o.batch_size, "Images a step [16]")->check(integer(1));
  app.add_option("--image-size", o.image_size, "Pixels a side [224]")->check(integer(32));
  app.add_option("--dummy-size", o.dummy_size, "Distinct fake images")
      ->check(integer(1, std::numeric_limits<int32_t>::max()))
      ->capture_default_str();
  app.add_option("--batch", o.batch,
                 "Exactly this batch at each step (input f32 [N,3,H,W], target i64 [N])")
      ->type_name("FILE")
      ->check(named)
      ->excludes(dummy);
  app.add_option("--steps", o.steps, "Steps an epoch")->check(integer(1))->capture_default_str();

  app.option_defaults()->group("Output (files are safetensors)");
  app.add_option("-p,--print-freq", o.print_freq, "Steps from line to line, in a pipe")
      ->check(integer(1))
      ->capture_default_str();
  app.add_option("--dump-input", o.dump_input, "Write the last step's batch, as --batch reads it")
      ->type_name("FILE")
      ->check(named);
  app.add_option("--dump-output", o.dump_output, "Write the last step's logits")
      ->type_name("FILE")
      ->check(named);
  app.add_option("--json", o.json, "Write the settings and measurements, as JSON")
      ->type_name("FILE")
      ->check(named);
  app.add_option("--price-per-hour", o.price_per_hour,
                 "What the machine costs, in dollars: tells what images cost")
      ->check(is_price);
}

/// What is timed step by step.
void add_profile(CLI::App& app, Options& o) {
  app.option_defaults()->group("Profile");
  app.add_option(
         "--profile", o.profile,
         "Write where the time goes, for ui.perfetto.dev and chrome://tracing, and print it")
      ->type_name("FILE")
      ->check(named);
  app.add_option("--by", o.profile_by, "Rows of what is printed")
      ->check(CLI::IsMember({"op", "module", "shape", "kernel"}))
      ->capture_default_str();
  app.add_option("--profile-steps", o.profile_steps,
                 "Steps to look at, after two that allocate and fill caches")
      ->check(integer(1, 1 << 20))
      ->capture_default_str();
}

/// What reads pictures.
void add_pictures(CLI::App& app, Options& o) {
  app.option_defaults()->group("Pictures");
  app.add_option("--val-resize-size", o.val_resize_size,
                 "Short side that pictures are resized to before the middle is cut out of them "
                 "[--image-size times 256/224]")
      ->check(integer(32));
}

/// Of those, what reads folders.
void add_folder(CLI::App& app, Options& o) {
  app.add_option(
         "-j,--workers", o.workers,
         "Threads that decode ahead; 0: those of the step decode before it [0 up to 4 cores]; of "
         "fake images: that each draw a batch ahead [1]")
      ->check(integer(0, 256));
  app.add_flag("--skip-broken", o.skip_broken, "Leave out pictures that cannot be decoded");
}

/// What is done to the pictures of training.
void add_augmentation(CLI::App& app, Options& o) {
  app.add_option("--scale", o.scale, "Share of a picture's area that is cut out [0.08 1]")
      ->expected(2)
      ->type_name("LEAST MOST");
  app.add_option("--ratio", o.ratio, "Width by height of what is cut out [0.75 1.33]")
      ->expected(2)
      ->type_name("LEAST MOST");
  app.add_option("--hflip", o.hflip, "How likely a picture is mirrored")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--auto-augment", o.auto_augment, "Change each picture in one way [none]")
      ->check(CLI::IsMember({"ta_wide"}));
  app.add_option("--random-erase", o.random_erase, "How likely a rectangle of a picture is erased")
      ->check(number(1))
      ->capture_default_str();
  app.add_option("--mixup-alpha", o.mixup_alpha,
                 "Adds pictures up in shares of Beta(alpha, alpha); 0: never")
      ->check(number())
      ->capture_default_str();
  app.add_option("--cutmix-alpha", o.cutmix_alpha,
                 "Puts parts of pictures into others, likewise; with both, either")
      ->check(number())
      ->capture_default_str();
}

/// After add_common(), whose group of outputs goes on.
void add_training(CLI::App& app, Options& o) {
  app.add_option("--save", o.save, "Write the trained state_dict")->type_name("FILE")->check(named);
  app.add_option("--dump-grads", o.dump_grads, "Write the last step's gradients by parameter name")
      ->type_name("FILE")
      ->check(named);

  app.option_defaults()->group("Training");
  app.add_option("--epochs", o.epochs, "Epochs")->check(integer(1))->capture_default_str();
  app.add_option("--opt", o.opt, "Optimizer")
      ->check(CLI::IsMember({"sgd", "adamw", "adam", "rmsprop"}))
      ->capture_default_str();
  app.add_option("--lr", o.lr, "Learning rate")->check(number())->capture_default_str();
  app.add_option("--momentum", o.momentum, "Momentum of sgd and rmsprop")
      ->check(number(1))
      ->capture_default_str();
  app.add_option("--wd,--weight-decay", o.weight_decay, "Weight decay")
      ->check(number())
      ->capture_default_str();
}

/// After add_training(), whose group goes on.
void add_schedule(CLI::App& app, Options& o) {
  app.add_flag("--nesterov", o.nesterov, "Nesterov's momentum, for sgd");
  app.add_option("--norm-weight-decay", o.norm_weight_decay,
                 "Weight decay of norms [as --weight-decay]")
      ->check(number());
  app.add_option("--lr-scheduler", o.lr_scheduler, "How the rate falls from epoch to epoch [never]")
      ->check(CLI::IsMember({"step", "cosine"}));
  app.add_option("--lr-step-size", o.lr_step_size, "Epochs from fall to fall, by steps")
      ->check(integer(1))
      ->capture_default_str();
  app.add_option("--lr-gamma", o.lr_gamma, "What it is multiplied by then")
      ->check(number())
      ->capture_default_str();
  app.add_option("--lr-min", o.lr_min, "Where the cosine ends")
      ->check(number())
      ->capture_default_str();
  app.add_option("--lr-warmup-epochs", o.lr_warmup_epochs, "Epochs that the rate first rises for")
      ->check(integer(0))
      ->capture_default_str();
  app.add_option("--lr-warmup-decay", o.lr_warmup_decay, "From this share of it, linearly")
      ->check(number(1))
      ->capture_default_str();
  app.add_option("--label-smoothing", o.label_smoothing, "Share of a label that all classes get")
      ->check(number(1))
      ->capture_default_str();
  app.add_option("--clip-grad-norm", o.clip_grad_norm, "Largest norm of all gradients [none]")
      ->check(number());
  app.add_option("--accum-steps", o.accum_steps, "Batches an update of the weights")
      ->check(integer(1))
      ->capture_default_str();
  app.add_flag("--model-ema", o.model_ema, "Average the weights over steps; --save writes these");
  app.add_option("--model-ema-decay", o.model_ema_decay, "Share of the average that a step leaves")
      ->check(number(1))
      ->capture_default_str();

  app.option_defaults()->group("Checkpoints");
  app.add_option("--output-dir", o.output_dir, "Folder of checkpoints and log.csv")
      ->type_name("DIR")
      ->check(named);
  app.add_option("--checkpoint-every", o.checkpoint_every,
                 "Steps from checkpoint to checkpoint, beside one an epoch [none]")
      ->check(integer(1));
  app.add_option("--keep", o.keep, "Newest checkpoints that stay, beside the best")
      ->check(integer(1))
      ->capture_default_str();
  app.add_option("--resume", o.resume,
                 "Go on from a checkpoint; auto: the newest whole one of --output-dir, if any")
      ->type_name("auto|FILE")
      ->check(named);
}

/// What single options cannot tell.
void check_together(const Options& o) {
  if (o.data.empty() &&
      (!o.auto_augment.empty() || o.random_erase > 0 || o.mixup_alpha > 0 || o.cutmix_alpha > 0))
    throw CLI::ValidationError("--auto-augment, --random-erase, --mixup-alpha, --cutmix-alpha",
                               "expected DIR, too");
  if (!(o.scale[0] > 0 && o.scale[0] <= o.scale[1] && o.scale[1] <= 1))
    throw CLI::ValidationError("--scale",
                               "expected two shares, more than 0 and at most 1, in order");
  if (!(o.ratio[0] >= 0.01 && o.ratio[0] <= o.ratio[1] && o.ratio[1] <= 100))
    throw CLI::ValidationError("--ratio", "expected two numbers of 0.01 to 100, in order");
  for (const double alpha : {o.mixup_alpha, o.cutmix_alpha})
    if (alpha > 1000)
      throw CLI::ValidationError("--mixup-alpha, --cutmix-alpha", "expected at most 1000");
  if (o.mode == Mode::eval && o.weights.empty())
    throw CLI::ValidationError("eval", "expected --weights");
  if (!o.pictures.empty() && o.weights.empty())
    throw CLI::ValidationError("infer", "expected --weights to infer pictures with");
  if (o.pictures.empty() && !o.labels.empty())
    throw CLI::ValidationError("--labels", "expected pictures, too");
  if (std::ranges::count(o.pictures, "-") > 1)
    throw CLI::ValidationError("-", "expected standard input once, got it again");
  if (o.resize_size() < o.image_size.value_or(224))
    throw CLI::ValidationError("--val-resize-size", "expected at least --image-size");
  int64_t product = 0;
  if (__builtin_mul_overflow(o.steps, o.epochs, &product))
    throw CLI::ValidationError("--steps", "times --epochs is too large");
  if (o.nesterov && (o.opt != "sgd" || o.momentum == 0))
    throw CLI::ValidationError("--nesterov", "expected --opt sgd with a momentum");
  if (o.output_dir.empty() && !o.resume.empty())
    throw CLI::ValidationError("--resume", "expected --output-dir, too");
  if (o.output_dir.empty() && o.checkpoint_every > 0)
    throw CLI::ValidationError("--checkpoint-every", "expected --output-dir, too");

  const int64_t size = o.image_size.value_or(224);
  const int64_t bytes_a_pixel = 3 * static_cast<int64_t>(sizeof(float));
  if (__builtin_mul_overflow(size, size, &product) ||
      __builtin_mul_overflow(product, bytes_a_pixel, &product) ||
      __builtin_mul_overflow(product, o.batch_size.value_or(16), &product))
    throw CLI::ValidationError("--image-size", "squared, times --batch-size, is too large");

  namespace fs = std::filesystem;
  std::set<std::string> paths;
  const auto place = [](const std::string& path) {
    std::error_code unknown;
    const fs::path all_links_followed = fs::weakly_canonical(fs::absolute(path, unknown), unknown);
    return unknown ? path : all_links_followed.string();
  };
  for (const auto& [option, path] : o.outputs())
    if (!path.empty() && !paths.insert(place(path)).second)
      throw CLI::ValidationError(option, "expected a file of its own, got " + path + " again");
}

}  // namespace

std::vector<std::pair<std::string, std::string>> Options::outputs() const {
  return {{"--save", save},
          {"--dump-grads", dump_grads},
          {"--dump-input", dump_input},
          {"--dump-output", dump_output},
          {"--json", json},
          {"--profile", profile}};
}

int Options::worker_threads() const {
  const int cores = quern::num_threads();
  return static_cast<int>(workers.value_or(cores <= 4 ? 0 : std::min(8, 1 + cores / 8)));
}

int64_t Options::resize_size() const {
  const int64_t size = image_size.value_or(224);
  return val_resize_size.value_or((size * 256 + 112) / 224);
}

bool Options::writes_files() const {
  const auto all = outputs();
  return !output_dir.empty() ||
         std::ranges::any_of(all, [](const auto& output) { return !output.second.empty(); });
}

Options parse_options(int argc, char** argv) {
  Options options;
  CLI::App app("Trains networks of images and infers with them, on pictures or fake data.",
               "resnet50");
  app.require_subcommand(1);
  CLI::App* train = app.add_subcommand("train", "Train, and show loss and speed");
  CLI::App* eval = app.add_subcommand("eval", "Tell how often --weights are right about a folder");
  CLI::App* infer =
      app.add_subcommand("infer", "Infer, and show latency and speed, or the classes of pictures");
  CLI::App* doctor = app.add_subcommand(
      "doctor", "Tell what of this machine is used, what holds it back, and what to type");
  doctor->add_option("--threads", options.threads, "Threads [one a core]")->check(integer(1, 1024));
  doctor->add_flag("--measure", options.measure,
                   "Measure peaks again, and keep the faster of these and those that are known");
  doctor->add_option("--root", options.root, "Read DIR/proc and DIR/sys instead of the system's")
      ->type_name("DIR");
  const char* folder = "Folder of pictures, DIR/train/CLASS/*.jpeg and DIR/val/CLASS/*.jpeg";
  train->add_option("DIR", options.data, folder)->check(named);
  eval->add_option("DIR", options.data, "The same, or CLASS/*.jpeg alone")
      ->check(named)
      ->required();
  infer->add_option("PICTURE", options.pictures, "JPEG and PNG files; -: standard input")
      ->check(named);
  for (CLI::App* command : {train, eval, infer}) add_common(*command, options);
  for (auto [command, pictures] :
       {std::pair{train, "DIR"}, std::pair{eval, "DIR"}, std::pair{infer, "PICTURE"}})
    for (const char* fake : {"--dummy", "--dummy-size", "--batch", "--steps"})
      command->get_option(fake)->excludes(command->get_option(pictures));
  for (CLI::App* command : {train, infer}) add_profile(*command, options);
  for (const char* timed : {"--profile", "--price-per-hour"})
    infer->get_option(timed)->excludes(infer->get_option("PICTURE"));
  for (CLI::App* command : {train, eval, infer}) add_pictures(*command, options);
  for (CLI::App* command : {train, eval}) add_folder(*command, options);
  add_augmentation(*train, options);
  infer
      ->add_option("--labels", options.labels, "Names of classes, a line each [those in --weights]")
      ->type_name("FILE")
      ->check(named);
  train->option_defaults()->group("Output (files are safetensors)");
  add_training(*train, options);
  add_schedule(*train, options);

  try {
    app.parse(argc, argv);
    options.mode = *train ? Mode::train : *eval ? Mode::eval : *infer ? Mode::infer : Mode::doctor;
    check_together(options);
  } catch (const CLI::CallForHelp&) {
    print(app.help());
    std::exit(all_printed() ? 0 : 1);
  } catch (const CLI::ParseError& error) {
    const char* command = *train    ? " train"
                          : *eval   ? " eval"
                          : *infer  ? " infer"
                          : *doctor ? " doctor"
                                    : "";
    std::string why = error.what();
    for (const std::string& unknown : app.remaining(true))  // its value is a picture to others
      if (unknown.starts_with("-")) why = "no option is named " + unknown;
    print_error(fmt::format("error: {}\nSee resnet50{} --help.", why, command));
    std::exit(2);
  }
  return options;
}

}  // namespace resnet50
