// Batches to train on: fake images, or one batch from a file.
#pragma once
#include <functional>
#include <future>
#include <vector>

#include "options.h"
#include "quern/tensor/tensor.h"

namespace resnet50 {

struct Batch {
  quern::Tensor input;   // f32 [N, 3, H, W], contiguous or channels_last
  quern::Tensor target;  // i64 [N], labels in 0..num_classes-1
};

/// Hands out the batch of each step. What a batch holds depends on the step alone. Few that repeat
/// are made at the start; of many, the next one beside the step.
///   --batch F   that batch each time. Errors: tensors missing from F, other shapes, dtypes or
///               labels, or others than --batch-size and --image-size ask for.
///   --dummy     batch t holds images t·N ... t·N+N-1 of --dummy-size, over and over. Image i is
///               standard normal from the seed and i; its label is i % 10, or
///               i % --num-classes where these are fewer.
class DataLoader {
 public:
  explicit DataLoader(const Options& options);

  Batch next();
  /// The next batch is that of a step of an epoch, both counted from 0.
  void start_at(int64_t epoch, int64_t step);
  const quern::Shape& shape() const { return shape_; }  ///< of the input

 private:
  void prepare();

  std::vector<Batch> kept_;  // those of all steps, over and over; empty: they are made beside
  std::function<Batch(int64_t step)> make_;
  quern::Shape shape_;
  int64_t step_ = 0, steps_an_epoch_, steps_;
  std::future<Batch> next_;
};

}  // namespace resnet50
