// save_safetensors where nothing can be saved.
#include <doctest/doctest.h>
#include <sys/resource.h>

#include <csignal>

#include "quern/nn/safetensors.h"
#include "temporary_folder.h"

using namespace quern;
using quern::testing::TemporaryFolder;

TEST_CASE("save_safetensors: failures leave the old file and nothing else") {
  TemporaryFolder folder;
  std::string path = folder / "f";
  save_safetensors(path, {{"old", ones({4})}});
  const std::string old = folder.read("f");
  auto message = [&](const std::string& where, const TensorDict& dict,
                     const Metadata& metadata = {}) {
    try {
      save_safetensors(where, dict, metadata);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  std::string prefix = "[save_safetensors] " + path + ": ";

  CHECK(message(path, {{"\xff", ones({1})}}) == prefix + "expected names and metadata in UTF-8");
  CHECK(message(path, {}, {{"a", "\xc3"}}) == prefix + "expected names and metadata in UTF-8");
  CHECK(message(path, {{"__metadata__", ones({1})}}) ==
        prefix + "expected names other than \"__metadata__\"");
  CHECK(message(folder / "none/f", {}) ==
        "[save_safetensors] " + folder / "none/f" +
            ": expected a writable file, got: No such file or directory");
  CHECK(message(folder / "", {}) == "[save_safetensors] " + folder / "" +
                                        ": expected a writable file, got: not a regular file");
  CHECK(message("/dev/null", {}) ==
        "[save_safetensors] /dev/null: expected a writable file, got: not a regular file");

  // A disk that fills up in the middle, played by the limit on a file's size.
  rlimit before{}, limit{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  limit = before;
  limit.rlim_cur = 4096;
  auto handler = std::signal(SIGXFSZ, SIG_IGN);
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
  std::string full_disk = message(path, {{"big", ones({2000})}});
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  CHECK(full_disk == prefix + "expected a writable file, got: File too large");

  CHECK(folder.read("f") == old);
  CHECK(folder.count() == 1);
}
