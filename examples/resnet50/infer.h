#pragma once
#include "options.h"

namespace resnet50 {

/// Runs the network in eval mode on options.steps batches and then writes the outputs that are
/// asked for.
void infer(const Options& options);

}  // namespace resnet50
