#include "train.h"

#include <memory>

#include "data.h"
#include "model.h"
#include "output.h"
#include "quern/nn/loss.h"
#include "quern/nn/safetensors.h"
#include "quern/ops/autocast.h"
#include "quern/optim/adamw.h"
#include "quern/optim/sgd.h"
#include "quern/tensor/raw.h"
#include "report.h"

namespace resnet50 {

using namespace quern;

namespace {

std::unique_ptr<optim::Optimizer> make_optimizer(const Options& options, const nn::ResNet& model) {
  if (options.opt == "adamw")
    return std::make_unique<optim::AdamW>(
        model.parameters(),
        optim::AdamWOptions{.lr = options.lr, .weight_decay = options.weight_decay});
  return std::make_unique<optim::SGD>(
      model.parameters(),
      optim::SGDOptions{
          .lr = options.lr, .momentum = options.momentum, .weight_decay = options.weight_decay});
}

TensorDict gradients(const nn::ResNet& model) {
  TensorDict grads;
  for (const auto& [name, parameter] : model.named_parameters())
    grads.insert(name, parameter.grad());
  return grads;
}

}  // namespace

void train(const Options& options) {
  DataLoader loader(options);
  nn::ResNet model = make_model(options);
  const nn::CrossEntropyLoss criterion;
  const auto optimizer = make_optimizer(options, model);
  Report report(options, loader.shape(), count_parameters(model));
  Tensor logits;

  for (int64_t step = 0; step < options.total_steps(); ++step) {
    report.begin_step();
    const auto [input, target] = loader.next();
    report.data_ready();

    optimizer->zero_grad();
    Tensor loss;
    {
      const AutocastGuard autocast(options.amp);
      logits = model(input);
      loss = criterion(logits, target);
    }
    loss.backward();
    optimizer->step();
    report.end_step(loss.item());
  }
  report.finish();

  if (!options.save.empty()) save_safetensors(options.save, model.state_dict());
  if (!options.dump_grads.empty()) save_safetensors(options.dump_grads, gradients(model));
  if (!options.dump_output.empty())
    save_safetensors(options.dump_output, {{"logits", raw::to(logits.detach(), DType::f32)}});
  if (!options.json.empty()) write_text(options.json, report.json());
}

}  // namespace resnet50
