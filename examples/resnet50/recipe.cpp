#include "recipe.h"

#include <algorithm>
#include <unordered_set>
#include <vector>

#include "quern/nn/norm.h"
#include "quern/optim/adam.h"
#include "quern/optim/adamw.h"
#include "quern/optim/rmsprop.h"
#include "quern/optim/sgd.h"

namespace resnet50 {

using namespace quern;

namespace {

/// One group of all parameters, or those of norms apart.
template <class GroupOptions>
std::vector<optim::Group<GroupOptions>> make_groups(const Options& options, nn::Module& model,
                                                    GroupOptions settings) {
  settings.lr = options.lr;
  settings.weight_decay = options.weight_decay;
  if (!options.norm_weight_decay) return {{model.parameters(), settings}};
  std::unordered_set<const void*> of_norms;
  for (const auto& [name, module] : model.named_modules())
    if (dynamic_cast<nn::BatchNorm2d*>(module) || dynamic_cast<nn::LayerNorm*>(module))
      for (const Tensor& parameter : module->parameters())
        of_norms.insert(parameter.identity().lock().get());
  optim::Group<GroupOptions> others{{}, settings}, norms{{}, settings};
  norms.options.weight_decay = *options.norm_weight_decay;
  for (const Tensor& parameter : model.parameters())
    (of_norms.contains(parameter.identity().lock().get()) ? norms : others)
        .params.push_back(parameter);
  return {others, norms};
}

}  // namespace

std::unique_ptr<optim::Optimizer> make_optimizer(const Options& o, nn::Module& model) {
  if (o.opt == "adamw")
    return std::make_unique<optim::AdamW>(make_groups<optim::AdamWOptions>(o, model, {}));
  if (o.opt == "adam")
    return std::make_unique<optim::Adam>(make_groups<optim::AdamOptions>(o, model, {}));
  if (o.opt == "rmsprop")  // with torchvision's constants
    return std::make_unique<optim::RMSprop>(make_groups<optim::RMSpropOptions>(
        o, model, {.alpha = 0.9, .eps = 0.0316, .momentum = o.momentum}));
  return std::make_unique<optim::SGD>(
      make_groups<optim::SGDOptions>(o, model, {.momentum = o.momentum, .nesterov = o.nesterov}));
}

optim::Schedule make_schedule(const Options& o) {
  optim::Schedule schedule = [lr = o.lr](int64_t) { return lr; };
  if (o.lr_scheduler == "step") schedule = optim::step_lr(o.lr, o.lr_step_size, o.lr_gamma);
  if (o.lr_scheduler == "cosine")
    schedule = optim::cosine_annealing(o.lr, std::max<int64_t>(1, o.epochs - o.lr_warmup_epochs),
                                       o.lr_min);
  if (o.lr_warmup_epochs == 0) return schedule;
  return optim::warmup_then(o.lr_warmup_epochs, schedule, o.lr_warmup_decay);
}

}  // namespace resnet50
