#include "console.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace resnet50 {
namespace {

int first_failure = 0;  // an errno

}  // namespace

void occupy_standard_streams() {
  // Opened the wrong way round: writing fails as to a closed stream.
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (fcntl(stream, F_GETFD) < 0)
      static_cast<void>(open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY));
}

void print(std::string_view text) {
  errno = 0;
  std::fwrite(text.data(), 1, text.size(), stdout);
  const bool failed = std::fflush(stdout) != 0 || std::ferror(stdout) != 0;
  // Lines of the library's that failed leave their mark and no reason.
  if (failed && first_failure == 0) first_failure = errno != 0 ? errno : EIO;
}

void print_error(std::string_view text) {
  std::fprintf(stderr, "resnet50: %.*s\n", static_cast<int>(text.size()), text.data());
}

bool all_printed() {
  print("");
  if (first_failure == 0) return true;
  print_error(fmt::format("error: [print] standard output: expected a writable one, got: {}",
                          std::strerror(first_failure)));
  return false;
}

}  // namespace resnet50
