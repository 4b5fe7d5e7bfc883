// Running a program from a test: its exit status and what it wrote.
#pragma once
#include <sys/wait.h>

#include <cstdlib>
#include <string>

#include "temporary_folder.h"

namespace quern::testing {

struct Run {
  int status;
  std::string out, err;
};

/// Runs a command line of the shell.
inline Run run(const std::string& command) {
  const TemporaryFolder folder;
  const std::string out = folder / "out", err = folder / "err";
  const int status = std::system(("{ " + command + "; } >" + out + " 2>" + err).c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(out), read_file(err)};
}

}  // namespace quern::testing
