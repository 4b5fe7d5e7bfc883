// The files that a run writes, checked before it.
#pragma once
#include "options.h"

namespace resnet50 {

/// Makes --output-dir. Errors: one that is no folder, or not writable; an output that
/// quern::FileReplacement would not write.
void check_outputs(const Options& options);

}  // namespace resnet50
