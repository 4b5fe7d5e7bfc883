// What machine_peaks keeps, and when it measures again: with figures that are made up.
#include "resnet50/machine_peaks.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "temporary_folder.h"
#include "tensor/threads.h"

using namespace quern;
using quern::testing::TemporaryFolder, quern::testing::write_file;

namespace {

using Json = nlohmann::json;

/// Sets $XDG_CACHE_HOME for a scope.
class CacheHome {
 public:
  explicit CacheHome(const std::string& folder) {
    const char* value = std::getenv("XDG_CACHE_HOME");
    was_set_ = value != nullptr;
    if (was_set_) before_ = value;
    setenv("XDG_CACHE_HOME", folder.c_str(), 1);
  }
  ~CacheHome() {
    if (was_set_) setenv("XDG_CACHE_HOME", before_.c_str(), 1);
    else unsetenv("XDG_CACHE_HOME");
  }

 private:
  bool was_set_;
  std::string before_;
};

}  // namespace

TEST_CASE("peaks are kept while machine and program are the same") {
  const TemporaryFolder folder;
  const CacheHome cache(folder / "cache");
  const test::Threads kept_threads;
  int measurements = 0;
  double gflops = 100;
  const auto peaks = [&](int threads, bool again = false) {
    set_num_threads(threads);
    const ProfilerPeaks got = resnet50::machine_peaks(again, [&] {
      ++measurements;
      ProfilerPeaks measured{.threads = threads};
      measured.arithmetic.push_back({"portable", false, gflops});
      measured.memory.push_back({"memory", INT64_MAX, 10});
      return measured;
    });
    CHECK(got.threads == threads);
    return got.arithmetic.at(0).gflops;
  };
  const auto file = [&] { return Json::parse(folder.read("cache/quern/peaks.json")); };
  const auto write = [&](const std::string& text) {
    write_file(folder / "cache/quern/peaks.json", text);
  };
  CHECK(peaks(1) == 100);
  const Json kept = file();
  REQUIRE(kept.at("peaks").size() == 1);
  CHECK(kept.at("peaks")[0].at("threads") == 1);
  gflops = 50;
  CHECK(peaks(1) == 100);
  CHECK(measurements == 1);
  CHECK(file() == kept);
  for (const char* condition : {"cpu", "cores", "amx", "build"}) {
    CAPTURE(condition);
    Json other = kept;
    other["of"][condition] = "another";
    write(other.dump());
    const int before = measurements;
    CHECK(peaks(1) == 50);
    CHECK(measurements == before + 1);
    CHECK(file().at("of") == kept.at("of"));
    CHECK(file().at("peaks").size() == 1);
  }
  for (const char* text : {"{\"of\": torn", "", "[]"}) {
    write(text);
    CHECK(peaks(1) == 50);
    CHECK(file().at("of") == kept.at("of"));
  }
  gflops = 200;
  CHECK(peaks(1) == 50);
  CHECK(peaks(1, true) == 200);
  gflops = 100;
  CHECK(peaks(1, true) == 200);  // the faster counts
  CHECK(file().at("peaks").size() == 1);
  if (std::thread::hardware_concurrency() < 2) {
    MESSAGE("skipped peaks of two threads: there is one CPU");
    return;
  }
  CHECK(peaks(2) == 100);
  CHECK(file().at("peaks").size() == 2);
  CHECK(peaks(1) == 200);
}
