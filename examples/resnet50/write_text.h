// A file of text, whole or not at all.
#pragma once
#include <string>

namespace resnet50 {

/// Writes `text`, to the disk. Error, after which an older file is as it was: the system's.
void write_text(const std::string& path, const std::string& text);

}  // namespace resnet50
