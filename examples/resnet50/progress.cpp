#include "progress.h"

#include "quern/tensor/raw.h"

namespace resnet50 {

using namespace quern;

Hits count_hits(const Tensor& logits, const Tensor& target) {
  const Tensor rows = raw::contiguous(raw::to(logits.detach(), DType::f32));
  const auto labels = target.to_vector<int64_t>();
  const int64_t classes = rows.size(1);
  Hits hits;
  for (size_t n = 0; n < labels.size(); ++n) {
    const float* row = rows.data<float>() + static_cast<int64_t>(n) * classes;
    const int64_t label = labels[n];
    if (label < 0 || label >= classes || row[label] != row[label]) continue;
    int64_t better = 0;
    for (int64_t c = 0; c < classes; ++c)
      better += row[c] > row[label] || (c < label && row[c] == row[label]);
    hits.top1 += better < 1;
    hits.top5 += better < 5;
  }
  return hits;
}

void Tally::add(int64_t batch, double mean_loss, Hits hits, double step_seconds,
                double wait_seconds) {
  images += static_cast<double>(batch);
  loss += mean_loss * static_cast<double>(batch);
  top1 += static_cast<double>(hits.top1);
  top5 += static_cast<double>(hits.top5);
  seconds += step_seconds;
  data_seconds += wait_seconds;
}

namespace {

Tensor to_tensor(const Tally& t) {
  return from_vector<double>({t.images, t.loss, t.top1, t.top5, t.seconds, t.data_seconds});
}

const Tensor& expect(const TensorDict& dict, const char* name, DType dtype, const Shape& shape) {
  const Tensor& t = dict.at(name);
  check(t.dtype() == dtype && t.shape() == shape, "resume", "{}: expected {} {}, got {}", name,
        dtype, shape, t);
  return t;
}

Tally to_tally(const TensorDict& dict, const char* name) {
  const double* v = expect(dict, name, DType::f64, {6}).data<double>();
  return {v[0], v[1], v[2], v[3], v[4], v[5]};
}

}  // namespace

TensorDict Progress::to_tensors() const {
  return {{"step", from_vector<int64_t>({step}, {})},
          {"best", from_vector<double>({best}, {})},
          {"epoch", to_tensor(epoch)},
          {"interval", to_tensor(interval)}};
}

Progress Progress::from_tensors(const TensorDict& tensors) {
  Progress progress{.step = expect(tensors, "step", DType::i64, {}).item<int64_t>(),
                    .best = expect(tensors, "best", DType::f64, {}).item(),
                    .epoch = to_tally(tensors, "epoch"),
                    .interval = to_tally(tensors, "interval")};
  check(progress.step >= 0, "resume", "step: expected at least 0, got {}", progress.step);
  return progress;
}

}  // namespace resnet50
