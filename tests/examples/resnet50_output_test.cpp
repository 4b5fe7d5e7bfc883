// resnet50 where what it writes goes nowhere.
#include <doctest/doctest.h>
#include <unistd.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include "examples/program.h"
#include "quern/nn/safetensors.h"

using namespace quern;
using namespace quern::testing;

namespace {

const std::string kTiny = " --arch resnet18 --image-size 32 -b 2 --steps 2 ";

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// A pipe that nobody reads, as descriptor 9 of the programs that are run.
class BrokenPipe {
 public:
  BrokenPipe() {
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    REQUIRE(dup2(ends[1], 9) == 9);
    close(ends[0]), close(ends[1]);
  }
  ~BrokenPipe() { close(9); }
};

}  // namespace

TEST_CASE("a run whose standard output fails writes its files and ends with status 1") {
  const BrokenPipe broken;
  const std::pair<std::string, std::string> outputs[] = {
      {" >/dev/full", "No space left on device"},
      {" >&-", "Bad file descriptor"},
      {" >&9", "Broken pipe"},
  };
  for (const auto& [output, reason] : outputs)
    for (const std::string mode : {"train", "infer"}) {
      const TemporaryFolder folder;
      CAPTURE(mode + output);
      const Run result =
          run((mode == "infer" ? "QUERN_VERBOSE=1 " : "") + std::string(QUERN_RESNET50 " ") + mode +
              kTiny + "--dump-output " + folder / "out" + " --json " + folder / "json" +
              (mode == "train" ? " --save " + folder / "save" : "") + output);
      CHECK(result.status == 1);
      CHECK(result.err ==
            "resnet50: error: [print] standard output: expected a writable one, got: " + reason +
                "\n");
      CHECK(load_safetensors(folder / "out").at("logits").describe() == "f32 [2,1000]");
      CHECK(nlohmann::json::parse(folder.read("json")).at("loss").size() == 2);
      if (mode == "train") CHECK(load_safetensors(folder / "save").contains("fc.weight"));
    }
}

TEST_CASE("a run without files ends when nobody reads what it prints") {
  const BrokenPipe broken;
  const Run result = run(QUERN_RESNET50 " infer" + kTiny + " >&9; exit $?");
  CHECK(result.status == 128 + SIGPIPE);
}

TEST_CASE("help that cannot be printed is a failure") {
  for (const std::string command : {"--help", "train --help"})
    for (const std::string output : {" >/dev/full", " >&-"}) {
      const Run result = run(QUERN_RESNET50 " " + command + output);
      CHECK(result.status == 1);
      CHECK(has(result.err, "[print] standard output: expected a writable one, got: "));
    }
}

TEST_CASE("a standard error that fails changes no status, and closed streams no file") {
  const TemporaryFolder folder;
  for (const std::string error : {" 2>/dev/full", " 2>&-"}) {
    CAPTURE(error);
    CHECK(run(QUERN_RESNET50 " train --lr -1" + error).status == 2);
    CHECK(run(QUERN_RESNET50 " train --weights none" + error).status == 1);
    CHECK(run("QUERN_MAX_CPU_ISA=portable " QUERN_RESNET50 " infer --amp" + kTiny + error).status ==
          0);
  }
  const Run result = run("QUERN_VERBOSE=1 " QUERN_RESNET50 " train" + kTiny + "--save " +
                         folder / "save" + " <&- >&- 2>&-");
  CHECK(result.status == 1);
  CHECK(load_safetensors(folder / "save").contains("fc.weight"));
}

TEST_CASE("files go through links, and those that lead nowhere are refused before the run") {
  const TemporaryFolder folder;
  const auto link = [&](const std::string& to, const std::string& name) {
    REQUIRE(symlink(to.c_str(), (folder / name).c_str()) == 0);
  };
  link("real", "link");
  link("loop", "loop");
  link("missing/file", "nowhere");
  CHECK(run(QUERN_RESNET50 " infer" + kTiny + "--json " + folder / "link").status == 0);
  CHECK(nlohmann::json::parse(folder.read("real")).at("mode") == "infer");
  const Run twice = run(QUERN_RESNET50 " infer" + kTiny + "--json " + folder / "link" +
                        " --dump-output " + folder / "real");
  CHECK(twice.status == 2);
  CHECK(has(twice.err, "expected a file of its own"));
  for (const auto& [name, reason] : {std::pair{"loop", "Too many levels of symbolic links"},
                                     std::pair{"nowhere", "No such file or directory"}}) {
    const Run result = run(QUERN_RESNET50 " infer" + kTiny + "--json " + folder / name);
    CHECK(result.status == 1);
    CHECK(result.out.empty());
    CHECK(has(result.err,
              "[infer] --json: expected a writable file, got " + folder / name + ": " + reason));
  }
}
