#pragma once
#include "options.h"

namespace resnet50 {

/// Trains for options.total_steps() and then writes the outputs that are asked for.
void train(const Options& options);

}  // namespace resnet50
