// Runs a test case of this program in a process of its own: for what is read once a process.
#pragma once
#include <array>
#include <cstdio>
#include <filesystem>
#include <string>

namespace quern::test {

/// What the process printed. `environment` is shell assignments; the case must be marked skip().
inline std::string run_self(const std::string& environment, const std::string& test_case) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  const std::string command = environment + " " QUERN_EMULATOR " '" + self +
                              "' --no-skip --test-case='" + test_case + "' 2>&1";
  std::string output;
  FILE* pipe = popen(command.c_str(), "r");
  std::array<char, 4096> buffer;
  while (std::fgets(buffer.data(), buffer.size(), pipe) != nullptr) output += buffer.data();
  pclose(pipe);
  return output;
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace quern::test
