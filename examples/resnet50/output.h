// The files that a run writes: checked before it, written whole or not at all after it.
#pragma once
#include <string>

#include "options.h"

namespace resnet50 {

/// Makes --output-dir. Errors: one that is no folder, or not writable; an output that
/// quern::FileReplacement would not write.
void check_outputs(const Options& options);

/// Writes `text`, to the disk. Error, after which an older file is as it was: the system's.
void write_text(const std::string& path, const std::string& text);

}  // namespace resnet50
