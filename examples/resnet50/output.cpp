#include "output.h"

#include "quern/nn/file_replacement.h"
#include "quern/tensor/check.h"

namespace resnet50 {

void check_outputs(const Options& options) {
  for (const auto& [option, path] : options.outputs()) {
    if (path.empty()) continue;
    const std::string reason = quern::why_not_replaceable(path);
    quern::check(reason.empty(), to_string(options.mode),
                 "{}: expected a writable file, got {}: {}", option, path, reason);
  }
}

void write_text(const std::string& path, const std::string& text) {
  quern::FileReplacement file("write", path);
  file.write(text.data(), static_cast<int64_t>(text.size()));
  file.commit();
}

}  // namespace resnet50
