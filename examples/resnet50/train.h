#pragma once
#include "data.h"
#include "options.h"

namespace resnet50 {

/// Trains for options.total_steps(), from where --resume says, and then writes the outputs that are
/// asked for. With --output-dir a first SIGTERM or SIGINT ends it after the step that is under way,
/// with a checkpoint and without the other outputs.
void train(const Options& options, Data& data);

}  // namespace resnet50
