// Runs of resnet50 that are killed, stopped and resumed: as if nothing had happened.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <vector>

#include "examples/program.h"
#include "quern/nn/pth.h"
#include "quern/nn/safetensors.h"

using namespace quern;
using namespace quern::testing;

namespace {

// Accumulated batches that an epoch does not divide, everything that has a state (dropout, too), a
// line each step.
const std::string kRun =
    "train --arch mobilenet_v2 --image-size 32 -b 4 --steps 5 --epochs 4 --dummy-size 16 "
    "--num-classes 10 --lr 0.02 --lr-scheduler cosine --lr-warmup-epochs 1 --label-smoothing 0.1 "
    "--clip-grad-norm 5 --nesterov --norm-weight-decay 0 --model-ema --accum-steps 2 ";

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

Run resnet50(const std::string& args) { return run(QUERN_RESNET50 " " + args); }

/// log.csv but for what the clock says.
std::vector<std::string> log_of(const std::string& folder) {
  std::istringstream file(read_file(folder + "/log.csv"));
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    for (int timed = 0; timed < 2; ++timed) line.resize(line.rfind(','));
    lines.push_back(line);
  }
  return lines;
}

/// Starts it, with its output to nowhere; to be waited for.
pid_t start(const std::string& args) {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child > 0) return child;
  const int nowhere = open("/dev/null", O_WRONLY);
  dup2(nowhere, STDOUT_FILENO), dup2(nowhere, STDERR_FILENO);
  execl("/bin/sh", "sh", "-c", ("exec " QUERN_RESNET50 " " + args).c_str(), nullptr);
  _exit(127);
}

/// Waits until log.csv has so many lines, or the program has ended.
void wait_for_lines(const std::string& folder, size_t lines, pid_t child) {
  while (waitpid(child, nullptr, WNOHANG) == 0 &&
         std::ranges::count(read_file(folder + "/log.csv"), '\n') < static_cast<int64_t>(lines))
    usleep(1000);
}

}  // namespace

TEST_CASE("a run that is killed again and again ends with the same bits and the same log") {
  const TemporaryFolder folder;
  const std::string whole = folder / "whole", killed = folder / "killed";
  REQUIRE(resnet50(kRun + "--output-dir " + whole + " --save " + folder / "a").status == 0);
  const auto log = log_of(whole);
  CHECK(log.size() == 21);

  const std::string resumed =
      kRun + "--output-dir " + killed + " --resume auto --checkpoint-every 2 ";
  std::mt19937 random(7);
  for (size_t line : {2, 5, 6, 9, 13, 17, 20}) {
    const pid_t child = start(resumed);
    wait_for_lines(killed, line, child);
    usleep(static_cast<useconds_t>(random() % 50'000));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
  REQUIRE(resnet50(resumed + " --save " + folder / "b").status == 0);
  CHECK(read_file(folder / "a") == read_file(folder / "b"));
  CHECK(log_of(killed) == log);
  // The last two and the best; what killed runs had begun is gone.
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(killed))
    files += entry.path().extension() == ".safetensors";
  CHECK(files == 3);
}

TEST_CASE("SIGTERM and SIGINT end a run after its step, with a checkpoint and status 0") {
  const TemporaryFolder folder;
  const std::string whole = folder / "whole", stopped = folder / "stopped";
  REQUIRE(resnet50(kRun + "--output-dir " + whole + " --save " + folder / "a").status == 0);
  for (const int signal : {SIGTERM, SIGINT}) {
    const size_t before = log_of(whole).size();
    const pid_t child = start(kRun + "--output-dir " + stopped + " --resume auto");
    wait_for_lines(stopped, signal == SIGTERM ? 3 : 9, child);
    kill(child, signal);
    int status = -1;
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
    CHECK(log_of(stopped).size() < before);
  }
  const Run rest =
      resnet50(kRun + "--output-dir " + stopped + " --resume auto --save " + folder / "b");
  CHECK(rest.status == 0);
  CHECK(has(rest.out, "resume: " + stopped + "/checkpoint-"));
  CHECK(read_file(folder / "a") == read_file(folder / "b"));
  CHECK(log_of(stopped) == log_of(whole));

  // One that has ended has nothing left to do, and writes what is asked for.
  const Run again =
      resnet50(kRun + "--output-dir " + stopped + " --resume auto --save " + folder / "c");
  CHECK(again.status == 0);
  CHECK(has(again.out, "no step was left"));
  CHECK(read_file(folder / "a") == read_file(folder / "c"));
}

TEST_CASE("torn and foreign checkpoints are named and passed over") {
  const TemporaryFolder folder;
  const std::string out = folder / "out";
  const std::string tiny =
      "train --arch resnet18 --image-size 32 -b 2 --num-classes 10 --steps 2 --epochs 3 ";
  REQUIRE(resnet50(tiny + "--output-dir " + out + " --keep 3 --save " + folder / "a").status == 0);
  const auto checkpoint = [&](int step) {
    return out + "/checkpoint-0000000" + std::to_string(step) + ".safetensors";
  };
  const std::string second = read_file(checkpoint(4));
  write_file(checkpoint(6), second.substr(0, second.size() - 1));
  save_safetensors(checkpoint(7), {});
  write_file(checkpoint(8), "");
  const Run resumed =
      resnet50(tiny + "--output-dir " + out + " --resume auto --save " + folder / "b");
  CHECK(resumed.status == 0);
  for (const int step : {6, 7, 8})
    CHECK(has(resumed.err, "warning: --resume: " + checkpoint(step) + " is passed over: ["));
  CHECK(has(resumed.out, "resume: " + checkpoint(4) + ": step 4 of 6"));
  CHECK(read_file(folder / "a") == read_file(folder / "b"));

  // Asked for by name they are errors, and so is a run that a checkpoint does not fit.
  const std::string fourth = folder.write("fourth", second);
  const std::string elsewhere = tiny + "--output-dir " + folder / "new" + " --resume ";
  CHECK(resnet50(elsewhere + checkpoint(8)).status == 1);
  CHECK(resnet50(elsewhere + folder / "missing").status == 1);
  const Run other =
      resnet50("train --arch resnet34 --image-size 32 --num-classes 10 --output-dir " +
               folder / "new" + " --resume " + fourth);
  CHECK(other.status == 1);
  CHECK(has(other.err, "expected a run with the same options, got one with --arch \"resnet18\""));
  const Run warned =
      resnet50(tiny + "--lr 0.5 --output-dir " + folder / "new" + " --resume " + fourth);
  CHECK(warned.status == 0);
  CHECK(has(warned.err, "was written with --lr 0.005"));
  const Run fresh = resnet50(tiny + "--output-dir " + out);
  CHECK(fresh.status == 1);
  CHECK(has(fresh.err, "--output-dir: expected a folder without checkpoints, or --resume auto"));
  // A checkpoint is a file of weights, too.
  CHECK(load_weights(fourth).contains("fc.weight"));
  CHECK(resnet50("infer --arch resnet18 --image-size 32 --num-classes 10 --steps 1 --weights " +
                 fourth)
            .status == 0);
}

TEST_CASE("a disk that is full costs a checkpoint and not the run") {
  const TemporaryFolder folder;
  const std::string tiny =
      "train --arch resnet18 --image-size 32 -b 2 --num-classes 10 --steps 1 --epochs 2 --save " +
      folder / "a" + " --output-dir " + folder / "out";
  // A limit on the size of files plays the disk; the signal that comes with it is ignored.
  const Run full = run("trap '' XFSZ; ulimit -f 200; " QUERN_RESNET50 " " + tiny);
  CHECK(full.status == 1);
  CHECK(has(full.err, "warning: a checkpoint was not written: [save_safetensors] "));
  CHECK(has(full.err, "--output-dir: expected to write a checkpoint"));
  CHECK(has(full.out, "Epoch 1: "));
  CHECK_FALSE(std::filesystem::exists(folder / "out/checkpoint-00000001.safetensors"));
  CHECK(run(QUERN_RESNET50 " " + tiny + " --resume auto").status == 0);
}

TEST_CASE("a batch that is accumulated twice has the gradients of one") {
  const TemporaryFolder folder;
  const std::string common =
      "train --arch resnet18 --image-size 32 --num-classes 10 -b 4 --dummy-size 4 --lr 0 "
      "--dump-grads ";
  REQUIRE(resnet50(common + folder / "one" + " --steps 1").status == 0);
  REQUIRE(resnet50(common + folder / "two" + " --steps 2 --accum-steps 2").status == 0);
  const TensorDict one = load_safetensors(folder / "one"), two = load_safetensors(folder / "two");
  for (const auto& [name, grad] : one)  // halves of powers of two, summed
    CHECK(grad.to_vector<float>() == two.at(name).to_vector<float>());
}

TEST_CASE("options of training do what they say") {
  const TemporaryFolder folder;
  const std::string tiny = "train --arch resnet18 --image-size 32 -b 4 --num-classes 10 ";
  const auto lrs = [&](const std::string& options) {
    const std::string out = folder / "lr";
    std::filesystem::remove_all(out);
    REQUIRE(resnet50("train --arch mobilenet_v2 --image-size 32 -b 2 --num-classes 10 --steps 1 " +
                     options + " --output-dir " + out)
                .status == 0);
    std::vector<std::string> rates;
    for (const std::string& line : log_of(out)) {
      std::istringstream fields(line);
      std::string field;
      for (int i = 0; i < 3; ++i) std::getline(fields, field, ',');
      rates.push_back(field);
    }
    rates.erase(rates.begin());
    return rates;
  };
  using Rates = std::vector<std::string>;
  CHECK(lrs("--lr 0.5 --epochs 2") == Rates{"0.5", "0.5"});
  CHECK(lrs("--lr 0.5 --epochs 3 --lr-scheduler step --lr-step-size 1 --lr-gamma 0.5") ==
        Rates{"0.5", "0.25", "0.125"});
  CHECK(lrs("--lr 0.5 --epochs 4 --lr-warmup-epochs 2 --lr-warmup-decay 0.5 --lr-scheduler step "
            "--lr-step-size 1 --lr-gamma 0.5") == Rates{"0.25", "0.375", "0.5", "0.25"});
  const Rates cosine = lrs("--lr 0.5 --epochs 2 --lr-scheduler cosine --lr-min 0.1");
  CHECK(cosine.front() == "0.5");
  CHECK(std::stod(cosine.back()) == doctest::Approx(0.3).epsilon(1e-12));

  for (const std::string options :
       {"--opt adam --lr 0.001", "--opt rmsprop --lr 0.0005",
        "--opt adamw --lr 0.001 --norm-weight-decay 0", "--lr 0.02 --nesterov"}) {
    CAPTURE(options);
    REQUIRE(resnet50(tiny + "--steps 6 " + options + " --json " + folder / "json").status == 0);
    const std::vector<double> loss = nlohmann::json::parse(folder.read("json")).at("loss");
    CHECK(loss.back() < 0.7 * loss.front());
  }
  const auto saved = [&](const std::string& options) {
    REQUIRE(resnet50(tiny + "--steps 2 --lr 0.02 " + options + " --save " + folder / "s").status ==
            0);
    return folder.read("s");
  };
  const std::string plain = saved("");
  CHECK(saved("--clip-grad-norm 1e9") == plain);
  for (const std::string option : {"--clip-grad-norm 0.1", "--nesterov", "--label-smoothing 0.1",
                                   "--norm-weight-decay 0.5", "--model-ema", "--accum-steps 2"}) {
    CAPTURE(option);
    CHECK(saved(option) != plain);
  }
  // An average that forgets all is the last weights, but for the rounding of a + (x - a).
  saved("");
  const auto last = load_safetensors(folder / "s").at("fc.weight").to_vector<double>();
  saved("--model-ema --model-ema-decay 0");
  const auto averages = load_safetensors(folder / "s").at("fc.weight").to_vector<double>();
  for (size_t i = 0; i < last.size(); ++i)
    CHECK(std::abs(last[i] - averages[i]) <= 0x1p-23 * (std::abs(last[i]) + 1));
  for (const auto& [args, part] : std::vector<std::pair<std::string, std::string>>{
           {"--nesterov --opt adam", "--nesterov"},
           {"--resume auto", "--output-dir"},
           {"--checkpoint-every 2", "--output-dir"},
           {"--lr-scheduler poly", "poly"},
           {"--label-smoothing 1", "--label-smoothing"},
           {"--num-classes 0", "--num-classes"},
           {"--keep 0", "--keep"},
           {"--accum-steps 0", "--accum-steps"}}) {
    const Run refused = resnet50(tiny + args);
    CHECK(refused.status == 2);
    CHECK(has(refused.err, part));
  }
}

TEST_CASE("weights of other classes train on, and say what was left out") {
  const TemporaryFolder folder;
  const std::string tiny = "train --arch resnet18 --image-size 32 -b 2 --steps 1 --lr 0 ";
  REQUIRE(resnet50(tiny + "--save " + folder / "a").status == 0);
  const Run tuned =
      resnet50(tiny + "--num-classes 7 --weights " + folder / "a" + " --save " + folder / "b");
  CHECK(tuned.status == 0);
  CHECK(has(tuned.out, "left out: fc.weight (expected f32 [7,512], got f32 [1000,512]), fc.bias"));
  CHECK(load_safetensors(folder / "b").at("conv1.weight").to_vector<float>() ==
        load_safetensors(folder / "a").at("conv1.weight").to_vector<float>());
  CHECK(resnet50("infer --arch resnet18 --image-size 32 --num-classes 7 --weights " + folder / "a")
            .status == 1);
}
