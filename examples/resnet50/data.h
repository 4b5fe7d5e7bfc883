// Batches to train on: pictures, fake images, or one batch from a file.
#pragma once
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "options.h"
#include "quern/tensor/tensor.h"

namespace resnet50 {

struct Batch {
  quern::Tensor input;   // f32 [N, 3, H, W], contiguous or channels_last
  quern::Tensor target;  // i64 [N], labels in 0..num_classes-1
  // Of --mixup-alpha and --cutmix-alpha, where defined: what else is in the images, of which
  // `share` is target's.
  quern::Tensor other = {};
  double share = 1;
};

/// Writes a file that --batch reads.
void save_batch(const std::string& path, const Batch& batch);

/// Hands out the batch of each step, one epoch after the other. What a batch holds depends on the
/// step alone.
class DataLoader {
 public:
  virtual ~DataLoader() = default;
  virtual Batch next() = 0;
  /// The next batch is that of a step of an epoch, both counted from 0.
  virtual void start_at(int64_t epoch, int64_t step) = 0;

  const quern::Shape& shape() const { return shape_; }  ///< of the input; a batch may hold fewer
  int64_t steps() const { return steps_; }              ///< an epoch
  /// Names, by label; empty where there are none.
  const std::vector<std::string>& classes() const { return classes_; }

 protected:
  quern::Shape shape_;
  int64_t steps_ = 0;
  std::vector<std::string> classes_;
};

/// Few batches that repeat are made at the start; of many, the next --workers, by a thread each
/// beside the step, one unless told; with 0 next() makes its batch, on all threads of the step. The
/// batches are the same.
///   --batch F   that batch each time. Errors: tensors missing from F, other shapes, dtypes or
///               labels, or others than --batch-size and --image-size ask for.
///   --dummy     batch t holds images t·N ... t·N+N-1 of --dummy-size, over and over. Image i is
///               standard normal from the seed and i; its label is i % 10, or
///               i % --num-classes where these are fewer.
class FakeLoader final : public DataLoader {
 public:
  explicit FakeLoader(const Options& options);
  Batch next() override;
  void start_at(int64_t epoch, int64_t step) override;

 private:
  void prepare();

  std::vector<Batch> kept_;  // those of all steps, over and over; empty: they are made beside
  std::function<Batch(int64_t step)> make_;
  int64_t step_ = 0;
  const int64_t all_steps_, workers_;
  std::deque<std::future<Batch>> ahead_;  // the batches of step_ and of those after it
};

/// What a run works on; `evaluation` may be null.
struct Data {
  std::unique_ptr<DataLoader> training, evaluation;
};

/// Of a folder of pictures, if the options name one: of train both loaders, where there is DIR/val,
/// of eval the second one, and options.steps and options.num_classes become the folder's. Else fake
/// data to train on. Errors: those of the loaders; fewer --num-classes than the folder has.
Data open_data(Options& options);

}  // namespace resnet50
