// The command line of resnet50.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace resnet50 {

enum class Mode { train, eval, infer, doctor };

struct Options {
  Mode mode = Mode::train;

  std::string arch = "resnet50";
  std::optional<int64_t> batch_size, image_size;  // unset: 16 and 224, or what --batch holds
  int64_t steps = 20, epochs = 1;
  int64_t dummy_size = 4;  // few enough to be told apart in the twenty steps of a first run
  std::string batch;       // files; empty where none is named
  std::string weights;

  // Pictures.
  std::string data, labels;           // a folder with train and val; a file of names
  std::vector<std::string> pictures;  // to infer; "-" is standard input
  std::optional<int64_t> workers, val_resize_size;
  bool skip_broken = false;
  std::vector<double> scale{0.08, 1}, ratio{3.0 / 4, 4.0 / 3};  // of a random crop, least and most
  double hflip = 0.5;
  std::string auto_augment;                                    // empty: none
  double random_erase = 0, mixup_alpha = 0, cutmix_alpha = 0;  // 0: none

  std::string opt = "sgd";
  double lr = 0.005, momentum = 0.9, weight_decay = 1e-4;

  // Training, by the names of torchvision's and timm's options.
  std::string lr_scheduler;  // empty: the rate stays
  int64_t lr_step_size = 30, lr_warmup_epochs = 0;
  double lr_gamma = 0.1, lr_min = 0, lr_warmup_decay = 0.01;
  double label_smoothing = 0;
  std::optional<double> clip_grad_norm, norm_weight_decay;
  bool nesterov = false, model_ema = false;
  double model_ema_decay = 0.9998;
  int64_t accum_steps = 1;
  int64_t num_classes = 1000;
  bool num_classes_given = false;  // else as the folder or the weights have

  // Checkpoints; output_dir is empty where there are none.
  std::string output_dir, resume;
  int64_t checkpoint_every = 0, keep = 2;

  bool amp = false, channels_last = false, no_fuse = false, no_drop = false;
  std::string matmul_precision;  // empty: what the environment says
  int threads = 0;               // 0: one a core
  uint64_t seed = 0;

  int64_t print_freq = 1;
  std::string save, dump_grads, dump_input, dump_output, json, profile;
  std::string profile_by = "op";  // rows of the table
  int64_t profile_steps = 10;
  std::string root;                      // doctor's: where /proc and /sys are
  bool measure = false;                  // doctor's: peaks that are known, too
  std::optional<double> price_per_hour;  // dollars, more than 0

  int64_t total_steps() const { return steps * epochs; }
  /// Threads that decode ahead. Unset: none on few cores, where all decode before the step.
  int worker_threads() const;
  /// The short side of a picture that is evaluated: torchvision's 256 for 224 unless it is given.
  int64_t resize_size() const;
  /// The files to write, by option; empty where none is named.
  std::vector<std::pair<std::string, std::string>> outputs() const;
  bool writes_files() const;
};

inline const char* to_string(Mode mode) {
  constexpr const char* names[] = {"train", "eval", "infer", "doctor"};
  return names[static_cast<int>(mode)];
}

/// Ends the program after --help (status 0; 1 if it could not be written) and for a command line
/// that makes no sense: the reason and where help is on standard error, status 2.
Options parse_options(int argc, char** argv);

}  // namespace resnet50
