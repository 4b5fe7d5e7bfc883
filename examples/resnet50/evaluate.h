#pragma once
#include "data.h"
#include "options.h"
#include "progress.h"
#include "quern/nn/module.h"

namespace resnet50 {

/// Runs `model` in eval mode, and leaves it in the mode that it was in, on an epoch of the loader.
Tally evaluate(quern::nn::Module& model, DataLoader& loader, const Options& options);
/// "top-1 97.20%, top-5 99.90%, loss 0.1234, 123.4 images/s".
std::string describe(const Tally& tally);

/// resnet50 eval: prints the above of --weights on a folder, and writes it where --json asks.
void evaluate(const Options& options, DataLoader& loader);

}  // namespace resnet50
