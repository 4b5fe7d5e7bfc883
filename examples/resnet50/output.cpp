#include "output.h"

#include <filesystem>

#include "quern/nn/file_replacement.h"
#include "quern/tensor/check.h"

namespace resnet50 {

namespace {

void make_output_dir(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  quern::check(!error && std::filesystem::is_directory(path, error), "train",
               "--output-dir: expected a folder, got {}: {}", path,
               error ? error.message() : "another kind of file");
  const std::string reason = quern::why_not_replaceable(path + "/log.csv");
  quern::check(reason.empty(), "train", "--output-dir: expected a writable folder, got {}: {}",
               path, reason);
}

}  // namespace

void check_outputs(const Options& options) {
  if (!options.output_dir.empty()) make_output_dir(options.output_dir);
  for (const auto& [option, path] : options.outputs()) {
    if (path.empty()) continue;
    const std::string reason = quern::why_not_replaceable(path);
    quern::check(reason.empty(), to_string(options.mode),
                 "{}: expected a writable file, got {}: {}", option, path, reason);
  }
}

}  // namespace resnet50
