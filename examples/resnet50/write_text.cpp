#include "write_text.h"

#include "quern/nn/file_replacement.h"

namespace resnet50 {

void write_text(const std::string& path, const std::string& text) {
  quern::FileReplacement file("write", path);
  file.write(text.data(), static_cast<int64_t>(text.size()));
  file.commit();
}

}  // namespace resnet50
