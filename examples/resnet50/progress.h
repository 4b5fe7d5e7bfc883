// How far training has come and what it has seen: with the states of model and optimizer, all that
// a run needs to go on as if it had not stopped.
#pragma once
#include <cstdint>
#include <limits>

#include "quern/tensor/tensor.h"
#include "quern/tensor/tensor_dict.h"

namespace resnet50 {

/// Images among whose k best classes the right one is.
struct Hits {
  int64_t top1 = 0, top5 = 0;
};
/// `logits` floating [N, C], `target` i64 [N] in 0..C-1. Of equal logits the lower class is better;
/// NaN is worse than any.
Hits count_hits(const quern::Tensor& logits, const quern::Tensor& target);

/// Sums over images since some step.
struct Tally {
  double images = 0, loss = 0, top1 = 0, top5 = 0;  // loss: of each image
  double seconds = 0, data_seconds = 0;

  void add(int64_t batch, double mean_loss, Hits hits, double step_seconds, double wait_seconds);
  double mean_loss() const { return loss / images; }
  double top1_percent() const { return 100 * top1 / images; }
  double top5_percent() const { return 100 * top5 / images; }
  double images_per_second() const { return images / seconds; }
};

struct Progress {
  int64_t step = 0;                                        // done, through all epochs
  double best = -std::numeric_limits<double>::infinity();  // quality of an epoch so far
  Tally epoch, interval;                                   // this epoch's; since the last line
                                                           // of log.csv
  quern::TensorDict to_tensors() const;
  /// Error: not to_tensors()'s.
  static Progress from_tensors(const quern::TensorDict& tensors);
};

}  // namespace resnet50
