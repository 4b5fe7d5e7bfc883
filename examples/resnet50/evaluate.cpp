#include "evaluate.h"

#include <fmt/core.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "console.h"
#include "model.h"
#include "price.h"
#include "quern/autograd/grad_mode.h"
#include "quern/nn/loss.h"
#include "quern/ops/autocast.h"
#include "write_text.h"

namespace resnet50 {

using namespace quern;

Tally evaluate(nn::Module& model, DataLoader& loader, const Options& options) {
  const bool training = model.is_training();
  const nn::CrossEntropyLoss criterion;
  const NoGradGuard no_grad;
  const AutocastGuard autocast(options.amp);
  const auto now = [] {
    const auto time = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double>(time).count();
  };
  model.eval();
  loader.start_at(0, 0);
  Tally tally;
  for (int64_t step = 0; step < loader.steps(); ++step) {
    const double begin = now();
    const Batch batch = loader.next();
    const double ready = now();
    const Tensor logits = model(batch.input);
    const double loss = criterion(logits, batch.target).item();
    tally.add(batch.input.size(0), loss, count_hits(logits, batch.target), now() - begin,
              ready - begin);
  }
  model.train(training);
  return tally;
}

std::string describe(const Tally& tally) {
  return fmt::format("top-1 {:.2f}%, top-5 {:.2f}%, loss {:.4f}, {:.1f} images/s",
                     tally.top1_percent(), tally.top5_percent(), tally.mean_loss(),
                     tally.images_per_second());
}

void evaluate(const Options& options, DataLoader& loader) {
  const auto network = make_model(options);
  nn::Module& model = *network;
  const Tally tally = evaluate(model, loader, options);
  print(fmt::format("eval {}: {:.0f} images: {}\n", options.arch, tally.images, describe(tally)));
  const Price price{options.price_per_hour.value_or(0), tally.images_per_second()};
  if (options.price_per_hour) print(price.describe());
  if (options.json.empty()) return;
  nlohmann::ordered_json json = {
      {"mode", to_string(options.mode)},
      {"arch", options.arch},
      {"images", tally.images},
      {"top1", tally.top1_percent()},
      {"top5", tally.top5_percent()},
      {"loss", tally.mean_loss()},
      {"images_per_second", tally.images_per_second()},
      {"data_share", tally.data_seconds / tally.seconds},
  };
  if (options.price_per_hour) price.add_to(json);
  write_text(options.json, json.dump(2) + "\n");
}

}  // namespace resnet50
