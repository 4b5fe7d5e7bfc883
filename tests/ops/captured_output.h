// What a function prints on standard output, for tests of QUERN_VERBOSE.
#pragma once
#include <unistd.h>

#include <cstdio>
#include <string>

namespace quern::test {

template <class F>
std::string captured_output(F&& f) {
  std::FILE* file = std::tmpfile();
  std::fflush(stdout);
  const int terminal = dup(STDOUT_FILENO);
  dup2(fileno(file), STDOUT_FILENO);
  f();
  std::fflush(stdout);
  dup2(terminal, STDOUT_FILENO);
  close(terminal);
  std::string text(static_cast<size_t>(std::ftell(file) < 0 ? 0 : lseek(fileno(file), 0, SEEK_END)),
                   '\0');
  std::rewind(file);
  text.resize(std::fread(text.data(), 1, text.size(), file));
  std::fclose(file);
  return text;
}

}  // namespace quern::test
