#include "output.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "quern/tensor/check.h"

namespace resnet50 {
namespace {

std::string why_not_writable(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (const auto status = fs::status(path, ignored);
      fs::exists(status) && !fs::is_regular_file(status))
    return "not a regular file";
  const fs::path folder = fs::absolute(path, ignored).parent_path();
  if (access(folder.c_str(), W_OK | X_OK) != 0) return std::strerror(errno);
  if (!fs::is_directory(folder, ignored)) return "not in a directory";
  return {};
}

}  // namespace

void check_outputs(const Options& options) {
  for (const auto& [option, path] : options.outputs()) {
    if (path.empty()) continue;
    const std::string reason = why_not_writable(path);
    quern::check(reason.empty(), to_string(options.mode),
                 "{}: expected a writable file, got {}: {}", option, path, reason);
  }
}

void write_text(const std::string& path, const std::string& text) {
  const std::string temporary = fmt::format("{}.{}.tmp", path, getpid());
  std::FILE* file = std::fopen(temporary.c_str(), "wx");
  bool ok = file != nullptr;
  if (ok) {
    ok = std::fwrite(text.data(), 1, text.size(), file) == text.size();
    ok = std::fclose(file) == 0 && ok;
    ok = ok && std::rename(temporary.c_str(), path.c_str()) == 0;
    if (!ok) unlink(temporary.c_str());
  }
  quern::check(ok, "write", "{}: expected a writable file, got: {}", path, std::strerror(errno));
}

}  // namespace resnet50
