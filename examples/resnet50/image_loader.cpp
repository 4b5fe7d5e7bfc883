#include "image_loader.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "console.h"
#include "quern/nn/image_augment.h"
#include "quern/nn/image_transform.h"
#include "quern/tensor/parallel.h"
#include "quern/tensor/raw.h"

namespace resnet50 {

using namespace quern;

namespace {

constexpr size_t kAhead = 2;  // batches, beside that of the step
// Streams: those of weights count from 0, those of fake images from 2^63.
constexpr uint64_t kPictures = uint64_t{1} << 62;
constexpr uint64_t kOrder = 0xffffffff;           // in the place of a picture
constexpr uint64_t kBatches = uint64_t{1} << 61;  // beside it: in the place of an epoch's

uint64_t stream(int64_t epoch, uint64_t picture) {
  return kPictures + (static_cast<uint64_t>(epoch) << 32) + picture;
}

}  // namespace

ImageLoader::ImageLoader(const Options& options, ImageFolder folder, Use use)
    : folder_(std::move(folder)),
      use_(use),
      seed_(options.seed),
      image_size_(options.image_size.value_or(224)),
      resize_size_(options.resize_size()),
      epochs_(use == Use::training ? options.epochs : 1),
      crop_{options.scale[0], options.scale[1], options.ratio[0], options.ratio[1], options.hflip},
      skip_broken_(options.skip_broken),
      augments_(use == Use::training && !options.auto_augment.empty()),
      erase_chance_(options.random_erase),
      mixup_alpha_(options.mixup_alpha),
      cutmix_alpha_(options.cutmix_alpha),
      format_(options.channels_last ? MemoryFormat::channels_last : MemoryFormat::contiguous) {
  const auto pictures = static_cast<int64_t>(folder_.pictures.size());
  check(pictures < int64_t{kOrder}, "images", "{}: expected less than {} pictures, got {}",
        folder_.path, kOrder, pictures);
  const int64_t batch = std::min(options.batch_size.value_or(16), pictures);
  shape_ = {batch, 3, image_size_, image_size_};
  classes_ = folder_.classes;
  steps_ = use == Use::training ? pictures / batch : (pictures + batch - 1) / batch;
  for (int i = 0; i < options.worker_threads(); ++i) workers_.emplace_back([this] { work(); });
}

ImageLoader::~ImageLoader() { stop(); }

void ImageLoader::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  begun_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ImageLoader::start_at(int64_t epoch, int64_t step) {
  const std::lock_guard lock(mutex_);
  queue_.clear();  // who is at work on a batch keeps it until done
  epoch_ = epoch, step_ = step;
}

std::shared_ptr<const ImageLoader::Order> ImageLoader::order_of(int64_t epoch) const {
  auto order = std::make_shared<Order>(folder_.pictures.size());
  std::iota(order->begin(), order->end(), 0u);
  if (use_ == Use::evaluation) return order;
  RandomStream random(seed_, stream(epoch, kOrder));
  for (size_t i = order->size(); i > 1; --i)
    std::swap((*order)[i - 1],
              (*order)[static_cast<size_t>(random.below(static_cast<int64_t>(i)))]);
  return order;
}

std::shared_ptr<ImageLoader::Pending> ImageLoader::make_pending() {
  if (step_ == steps_) ++epoch_, step_ = 0;
  if (epoch_ != order_epoch_) order_ = order_of(epoch_), order_epoch_ = epoch_;
  auto pending = std::make_shared<Pending>();
  pending->epoch = epoch_, pending->first = step_++ * shape_[0], pending->order = order_;
  pending->size = std::min(shape_[0], static_cast<int64_t>(order_->size()) - pending->first);
  const Shape shape{pending->size, 3, image_size_, image_size_};
  pending->batch = {empty(shape, DType::f32, format_), empty({pending->size}, DType::i64)};
  pending->errors.resize(static_cast<size_t>(pending->size));
  return pending;
}

void ImageLoader::fill(Pending& pending, int64_t i) const {
  const uint32_t index = (*pending.order)[static_cast<size_t>(pending.first + i)];
  const auto& [path, label] = folder_.pictures[index];
  pending.batch.target.out<int64_t>()[i] = label;
  try {
    const ImageDecoder picture = ImageDecoder::open(path);
    RandomStream random(seed_, stream(pending.epoch, index));
    const int64_t height = picture.height(), width = picture.width();
    const ImageView view = use_ == Use::training
                               ? random_resized_crop(height, width, image_size_, random, crop_)
                               : resized_center(height, width, resize_size_, image_size_);
    const Tensor out = raw::select(pending.batch.input, 0, i);
    const Tensor shown = decode_view(picture, view);
    normalize_image(out, augments_ ? trivial_augment_wide(shown, random) : shown);
    if (use_ == Use::training) random_erase_(out, erase_chance_, random);
  } catch (const Error& error) {
    pending.errors[static_cast<size_t>(i)] = error.what();
  }
}

void ImageLoader::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    std::shared_ptr<Pending> pending;
    begun_.wait(lock, [&] {
      const auto at =
          std::ranges::find_if(queue_, [](const auto& p) { return p->taken < p->size; });
      if (at != queue_.end()) pending = *at;
      return stopping_ || pending;
    });
    if (stopping_) return;
    const int64_t picture = pending->taken++;
    lock.unlock();
    std::exception_ptr failure;
    try {
      fill(*pending, picture);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    if (failure) pending->failure = failure;
    if (++pending->done == pending->size) done_.notify_all();
  }
}

Batch ImageLoader::next() {
  if (workers_.empty()) {
    const std::shared_ptr<Pending> pending = make_pending();
    parallel_for(pending->size, [&](int64_t i) { fill(*pending, i); });
    return finish(*pending);
  }
  const auto refill = [this] {
    while (queue_.size() < kAhead && !(epoch_ == epochs_ - 1 && step_ == steps_))
      queue_.push_back(make_pending());
    begun_.notify_all();
  };
  std::unique_lock lock(mutex_);
  refill();
  if (queue_.empty()) queue_.push_back(make_pending());
  const std::shared_ptr<Pending> pending = queue_.front();
  done_.wait(lock, [&] { return pending->done == pending->size; });
  queue_.pop_front();
  refill();
  lock.unlock();
  if (pending->failure) std::rethrow_exception(pending->failure);
  return finish(*pending);
}

Batch ImageLoader::finish(Pending& pending) {
  const auto is_broken = [](const std::string& error) { return !error.empty(); };
  const auto first = std::ranges::find_if(pending.errors, is_broken);
  if (first == pending.errors.end()) return mixed(std::move(pending.batch), pending);
  if (!skip_broken_) throw Error(*first + " (--skip-broken leaves such pictures out)");
  return mixed(without_broken(pending), pending);
}

Batch ImageLoader::without_broken(const Pending& pending) {
  std::vector<int64_t> whole;
  for (int64_t i = 0; i < pending.size; ++i) {
    const std::string& error = pending.errors[static_cast<size_t>(i)];
    if (error.empty()) whole.push_back(i);
    else if (broken_.insert(error).second)
      print_error(fmt::format("warning: broken picture {}: {}", broken_.size(), error));
  }
  check(!whole.empty(), "images",
        "{}: expected a picture of a batch to be whole, got {} broken ones", folder_.path,
        pending.size);
  const auto left = static_cast<int64_t>(whole.size());
  Batch batch{empty({left, 3, image_size_, image_size_}, DType::f32, format_),
              empty({left}, DType::i64)};
  for (int64_t i = 0; i < left; ++i) {
    raw::copy_(raw::select(batch.input, 0, i),
               raw::select(pending.batch.input, 0, whole[static_cast<size_t>(i)]));
    batch.target.out<int64_t>()[i] =
        pending.batch.target.data<int64_t>()[whole[static_cast<size_t>(i)]];
  }
  return batch;
}

Batch ImageLoader::mixed(Batch batch, const Pending& pending) const {
  if (use_ == Use::evaluation || (mixup_alpha_ == 0 && cutmix_alpha_ == 0)) return batch;
  RandomStream random(seed_,
                      stream(pending.epoch, static_cast<uint64_t>(pending.first)) + kBatches);
  const bool cut = mixup_alpha_ == 0 || (cutmix_alpha_ > 0 && random.below(2) == 1);
  const ImageMix mix = cut ? random_cutmix(cutmix_alpha_, image_size_, image_size_, random)
                           : random_mixup(mixup_alpha_, random);
  const int64_t n = batch.target.size(0);
  const Tensor other = empty({n}, DType::i64);
  const auto* labels = batch.target.data<int64_t>();
  for (int64_t i = 0; i < n; ++i) other.out<int64_t>()[i] = labels[i == 0 ? n - 1 : i - 1];
  return {mix_images(batch.input, mix), batch.target, other, mix.share};
}

}  // namespace resnet50
