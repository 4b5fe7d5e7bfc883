// Batches of pictures from a folder, decoded ahead of the step.
#pragma once
#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "data.h"
#include "image_folder.h"
#include "quern/nn/image_transform.h"

namespace resnet50 {

/// Training: pictures in an order drawn anew each epoch, of which a last batch that is not full is
/// left out unless it is the only one, in torchvision's transforms RandomResizedCrop and
/// RandomHorizontalFlip, --auto-augment, --random-erase, --mixup-alpha and --cutmix-alpha. All that
/// is drawn depends on the seed, the epoch and the picture, or the batch, alone.
/// Evaluation: all pictures in their order; Resize and CenterCrop.
///
/// --workers N threads decode picture by picture, up to two batches ahead; without them next()
/// decodes, on all threads of the step. The batches are the same. Errors of next(): a picture that
/// cannot be read or decoded, by its path and the reason; with --skip-broken it is left out of its
/// batch, and said once, unless nothing is left of the batch.
class ImageLoader final : public DataLoader {
 public:
  enum class Use { training, evaluation };
  ImageLoader(const Options& options, ImageFolder folder, Use use);
  ~ImageLoader() override;

  Batch next() override;
  void start_at(int64_t epoch, int64_t step) override;
  int64_t broken() const { return static_cast<int64_t>(broken_.size()); }  ///< pictures so far

 private:
  using Order = std::vector<uint32_t>;
  /// A batch that is being made.
  struct Pending {
    Batch batch;
    int64_t epoch, first, size;          // pictures first..first+size-1 of the order
    std::shared_ptr<const Order> order;  // of the epoch
    std::vector<std::string> errors;     // by picture; empty where all went well
    std::exception_ptr failure;          // other than a broken picture
    int64_t taken = 0, done = 0;         // pictures
  };

  std::shared_ptr<Pending> make_pending();
  std::shared_ptr<const Order> order_of(int64_t epoch) const;
  void fill(Pending& pending, int64_t picture) const;
  void work();
  Batch finish(Pending& pending);
  Batch without_broken(const Pending& pending);
  Batch mixed(Batch batch, const Pending& pending) const;
  void stop();

  const ImageFolder folder_;
  const Use use_;
  const uint64_t seed_;
  const int64_t image_size_, resize_size_, epochs_;
  const quern::RandomResizedCropOptions crop_;
  const bool skip_broken_, augments_;
  const double erase_chance_, mixup_alpha_, cutmix_alpha_;
  const quern::MemoryFormat format_;

  int64_t epoch_ = 0, step_ = 0;  // of the next batch to begin
  std::shared_ptr<const Order> order_;
  int64_t order_epoch_ = -1;
  std::set<std::string> broken_;

  std::mutex mutex_;  // of what follows
  std::condition_variable begun_, done_;
  std::deque<std::shared_ptr<Pending>> queue_;
  bool stopping_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace resnet50
