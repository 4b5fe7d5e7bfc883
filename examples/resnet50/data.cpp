#include "data.h"

#include <algorithm>
#include <filesystem>
#include <numeric>

#include "image_folder.h"
#include "image_loader.h"
#include "model.h"
#include "quern/nn/safetensors.h"
#include "quern/tensor/parallel.h"
#include "quern/tensor/random.h"
#include "quern/tensor/raw.h"

namespace resnet50 {

using namespace quern;

namespace {

constexpr int64_t kFakeClasses = 10;
constexpr int64_t kKept = 32 << 20;  // pixels of fake batches that are made before the first step
constexpr uint64_t kImages = uint64_t{1} << 63;  // streams from here on: the weights' count from 0

Batch fake_batch(int64_t step, const Shape& shape, int64_t images, int64_t classes, uint64_t seed,
                 MemoryFormat format) {
  const int64_t batch = shape[0], pixels = numel(shape) / batch;
  Batch result{empty(shape), empty({batch}, DType::i64)};
  for (int64_t j = 0; j < batch; ++j) {
    const int64_t image = (step % images * (batch % images) + j) % images;
    fill_normal(result.input.out<float>() + j * pixels, pixels, seed,
                kImages + static_cast<uint64_t>(image));
    result.target.out<int64_t>()[j] = image % classes;
  }
  result.input = raw::contiguous(result.input, format);
  return result;
}

Batch load_batch(const Options& options, MemoryFormat format) {
  const TensorDict file = load_safetensors(options.batch);
  const Tensor *input = file.find("input"), *target = file.find("target");
  const auto expect = [&](bool ok, const std::string& what, const Tensor* t) {
    check(ok, "batch", "{}: expected {}, got {}", options.batch, what, t ? t->describe() : "none");
  };
  expect(input && (input->dtype() == DType::f32 || input->dtype() == DType::f16) &&
             input->dim() == 4 && input->size(1) == 3 && input->numel() > 0,
         "\"input\" f32 or f16 [N,3,H,W], not empty", input);
  const int64_t n = input->size(0);
  expect(target && target->dtype() == DType::i64 && target->shape() == Shape{n},
         fmt::format("\"target\" i64 [{}]", n), target);
  expect(options.batch_size.value_or(n) == n,
         fmt::format("\"input\" of {} images (--batch-size)", options.batch_size.value_or(n)),
         input);
  const int64_t size = options.image_size.value_or(0);
  expect(size == 0 || (input->size(2) == size && input->size(3) == size),
         fmt::format("\"input\" of {0}x{0} pixels (--image-size)", size), input);
  for (int64_t label : target->to_vector<int64_t>())
    check(label >= 0 && label < options.num_classes, "batch",
          "{}: expected labels of 0..{}, got {}", options.batch, options.num_classes - 1, label);
  return {raw::contiguous(raw::to(*input, DType::f32), format), *target};
}

}  // namespace

void save_batch(const std::string& path, const Batch& batch) {
  save_safetensors(path, {{"input", batch.input}, {"target", batch.target}});
}

FakeLoader::FakeLoader(const Options& options)
    : all_steps_(options.total_steps()), workers_(options.workers.value_or(1)) {
  steps_ = options.steps;
  const auto format =
      options.channels_last ? MemoryFormat::channels_last : MemoryFormat::contiguous;
  const int64_t size = options.image_size.value_or(224);
  shape_ = {options.batch_size.value_or(16), 3, size, size};
  const auto fake = [=, shape = shape_, images = options.dummy_size, seed = options.seed,
                     classes = std::min(kFakeClasses, options.num_classes)](int64_t step) {
    return fake_batch(step, shape, images, classes, seed, format);
  };
  // Batches repeat after so many steps.
  const int64_t distinct = options.dummy_size / std::gcd(options.dummy_size, shape_[0]);

  if (!options.batch.empty()) {
    kept_ = {load_batch(options, format)};
    shape_ = kept_[0].input.shape();
  } else if (distinct * numel(shape_) <= kKept) {
    for (int64_t step = 0; step < std::min(distinct, all_steps_); ++step)
      kept_.push_back(fake(step));
  } else {
    make_ = fake;
    prepare();
  }
}

void FakeLoader::start_at(int64_t epoch, int64_t step) {
  step_ = epoch * steps_ + step;
  if (!kept_.empty()) return;
  ahead_.clear();  // waits for batches of other steps
  prepare();
}

Batch FakeLoader::next() {
  if (!kept_.empty()) return kept_[static_cast<size_t>(step_++) % kept_.size()];
  if (workers_ == 0) return make_(step_++);
  Batch batch = ahead_.front().get();
  ahead_.pop_front();
  ++step_;
  prepare();
  return batch;
}

void FakeLoader::prepare() {
  while (std::ssize(ahead_) < std::min(workers_, all_steps_ - step_))
    ahead_.push_back(std::async(std::launch::async, [this, step = step_ + std::ssize(ahead_)] {
      Batch batch;
      // As a body of parallel_for, so that it keeps to this thread
      // and leaves the others to the step.
      parallel_for(1, [&](int64_t) { batch = make_(step); });
      return batch;
    }));
}

namespace {

Data open_training(Options& options) {
  Data data;
  const std::string val = (std::filesystem::path(options.data) / "val").string();
  ImageFolder folder((std::filesystem::path(options.data) / "train").string());
  const std::vector<std::string> classes = folder.classes;
  const auto count = static_cast<int64_t>(classes.size());
  if (!options.num_classes_given) options.num_classes = count;
  check(count <= options.num_classes, "images",
        "{}: expected at most {} classes (--num-classes), got {}", folder.path, options.num_classes,
        count);
  data.training =
      std::make_unique<ImageLoader>(options, std::move(folder), ImageLoader::Use::training);
  options.steps = data.training->steps();
  if (!std::filesystem::exists(val)) return data;
  ImageFolder held_out(val);
  held_out.number_as(classes);
  data.evaluation =
      std::make_unique<ImageLoader>(options, std::move(held_out), ImageLoader::Use::evaluation);
  return data;
}

Data open_evaluation(Options& options) {
  Data data;
  const std::string val = (std::filesystem::path(options.data) / "val").string();
  ImageFolder folder(std::filesystem::exists(val) ? val : options.data);
  const WeightsClasses trained = classes_of(options.weights);
  if (!options.num_classes_given) options.num_classes = trained.count;
  if (!trained.names.empty()) folder.number_as(trained.names);
  const auto count = static_cast<int64_t>(folder.classes.size());
  check(count == options.num_classes, "images",
        "{}: expected a folder for each of the {} classes of {}, which does not name them, got {}",
        folder.path, options.num_classes, options.weights, count);
  data.evaluation =
      std::make_unique<ImageLoader>(options, std::move(folder), ImageLoader::Use::evaluation);
  return data;
}

}  // namespace

Data open_data(Options& options) {
  if (options.mode == Mode::eval) return open_evaluation(options);
  if (!options.data.empty()) return open_training(options);
  return {std::make_unique<FakeLoader>(options), nullptr};
}

}  // namespace resnet50
