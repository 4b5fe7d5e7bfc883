// How a run is trained: optimizer, learning rates, and what counts as weight decay,
// from its options.
#pragma once
#include <memory>

#include "options.h"
#include "quern/nn/module.h"
#include "quern/optim/optimizer.h"
#include "quern/optim/schedule.h"

namespace resnet50 {

/// The optimizer of --opt. With --norm-weight-decay the parameters of norms are its group 1.
std::unique_ptr<quern::optim::Optimizer> make_optimizer(const Options& options,
                                                        quern::nn::Module& model);

/// The learning rate of each epoch, counted from 0: --lr-warmup-epochs of torch's LinearLR, then
/// --lr-scheduler.
quern::optim::Schedule make_schedule(const Options& options);

}  // namespace resnet50
