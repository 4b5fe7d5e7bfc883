// What resnet50 refuses: exit status, message, and that nothing is written.
#include <doctest/doctest.h>

#include <vector>

#include "examples/program.h"
#include "quern/nn/resnet.h"
#include "quern/nn/safetensors.h"
#include "quern/tensor/random.h"

using namespace quern;
using namespace quern::testing;

namespace {

Run resnet50(const std::string& args) { return run(QUERN_RESNET50 " " + args); }
bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

const std::string kTiny = "--arch resnet18 --image-size 32 -b 2 --steps 1 ";

/// Fails with this status and a message with these parts, and prints nothing else.
void check_refused(const std::string& args, int status, const std::string& message) {
  const Run result = resnet50(args);
  CAPTURE(args);
  CAPTURE(result.err);
  CHECK(result.status == status);
  CHECK(result.err.starts_with("resnet50: error: "));
  CHECK(has(result.err, message));
}

}  // namespace

TEST_CASE("a command line that makes no sense ends with status 2 and a hint") {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "subcommand"},
      {"tarin", "subcommand"},
      {"train --unknown", "--unknown"},
      {"train folder spare", "spare"},
      {"train -b 0", "--batch-size: expected an integer of at least 1, got 0"},
      {"train -b -3", "--batch-size: expected an integer of at least 1, got -3"},
      {"train -b 2.5", "--batch-size: expected an integer of at least 1, got 2.5"},
      {"train -b 99999999999999999999", "--batch-size: expected an integer of at least 1"},
      {"train -b", "--batch-size"},
      {"train --steps 0", "--steps: expected an integer of at least 1, got 0"},
      {"train --epochs 0", "--epochs: expected an integer of at least 1, got 0"},
      {"train --image-size 31", "--image-size: expected an integer of at least 32, got 31"},
      {"train --dummy-size 0", "--dummy-size"},
      {"train --print-freq 0", "--print-freq"},
      {"train --arch resnet51", "--arch"},
      {"train --opt adagrad", "--opt"},
      {"train --lr -0.1", "--lr: expected a finite number of at least 0, got -0.1"},
      {"train --lr nan", "--lr: expected a finite number of at least 0, got nan"},
      {"train --lr inf", "--lr: expected a finite number of at least 0, got inf"},
      {"train --lr fast", "--lr"},
      {"train --weights ''", "--weights: expected the name of a file, got none"},
      {"train --momentum 1", "--momentum: expected a number of at least 0 and less than 1, got 1"},
      {"train --wd -1", "--wd: expected a finite number of at least 0, got -1"},
      {"train --threads 0", "--threads: expected an integer in 1..1024, got 0"},
      {"train --threads 1025", "--threads: expected an integer in 1..1024, got 1025"},
      {"train --seed -1", "--seed"},
      {"infer --matmul-precision low", "--matmul-precision: low not in {highest,high,medium}"},
      {"train --steps 4000000000 --epochs 4000000000", "--steps: times --epochs is too large"},
      {"train --image-size 2000000000", "--image-size: squared, times --batch-size, is too large"},
      {"train -b 9000000000000000000", "--image-size: squared, times --batch-size, is too large"},
      {"train --dummy --batch f", "--dummy excludes --batch"},
      {"infer --dummy --dtype bf16", "no option is named --dtype"},
      {"infer a.png --weights w --profile f", "PICTURE excludes --profile"},
      {"infer a.png --weights w --price-per-hour 1", "PICTURE excludes --price-per-hour"},
      {"train --save same --json same", "expected a file of its own, got same again"},
      {"train --save same --json ./same", "expected a file of its own, got ./same again"},
      {"infer --lr 0.1", "--lr"},
      {"infer --save f", "--save"},
      {"infer --dump-grads f", "--dump-grads"},
  };
  for (const auto& [args, message] : cases) {
    check_refused(args, 2, message);
    const Run result = resnet50(args);
    CHECK(has(result.err, "--help"));
    CHECK(result.out.empty());
  }
}

TEST_CASE("a folder that is not there ends with status 1") {
  for (const std::string folder : {"infer", "spare"})
    check_refused("train " + folder, 1, folder + "/train: expected a readable folder");
}

TEST_CASE("help tells every option") {
  const Run train = resnet50("train --help"), infer = resnet50("infer --help");
  CHECK(resnet50("--help").status == 0);
  CHECK(train.status == 0);
  CHECK(infer.status == 0);
  for (const char* option :
       {"--arch", "--weights", "--dummy", "--batch-size", "--image-size", "--dummy-size", "--batch",
        "--steps", "--amp", "--matmul-precision", "--channels-last", "--no-fuse", "--threads",
        "--seed", "--print-freq", "--dump-output", "--json"}) {
    CHECK(has(train.out, option));
    CHECK(has(infer.out, option));
  }
  for (const char* option : {"--epochs", "--opt", "--lr", "--momentum", "--wd", "--weight-decay",
                             "--save", "--dump-grads"})
    CHECK(has(train.out, option));
}

TEST_CASE("weights that are not the network's end with status 1 and nothing written") {
  const TemporaryFolder files, outputs;
  const std::string good = files / "good", bad = files / "bad";
  save_safetensors(good, nn::resnet18().state_dict());
  const std::string bytes = read_file(good);
  const auto refused = [&](const std::string& message) {
    check_refused("train " + kTiny + "--weights " + bad + " --save " + outputs / "save" +
                      " --json " + outputs / "json",
                  1, message);
    CHECK(outputs.count() == 0);
  };

  refused("bad");  // there is no such file
  for (size_t size :
       {size_t{0}, size_t{7}, size_t{8}, size_t{1000}, bytes.size() / 2, bytes.size() - 1}) {
    write_file(bad, bytes.substr(0, size));
    refused("bad");
  }
  write_file(bad, std::string(8, '\xff') + bytes.substr(8));  // a header longer than the file
  refused("bad");
  write_file(bad, bytes + "spare");
  refused("bad");

  TensorDict other;
  for (const auto& [name, tensor] : nn::resnet18().state_dict())
    other.insert(name, name == "conv1.weight" ? zeros({64, 1, 7, 7}) : tensor);
  save_safetensors(bad, other);
  refused("conv1.weight");
  TensorDict more = nn::resnet18().state_dict();
  more.insert("spare", zeros({1}));
  save_safetensors(bad, more);
  refused("spare");
}

TEST_CASE("weights of other classes train, but for their head, which is named") {
  const TemporaryFolder files;
  save_safetensors(files / "ten", nn::resnet18({.num_classes = 10}).state_dict());
  const Run result = resnet50("train " + kTiny + "--weights " + files / "ten");
  CHECK(result.status == 0);
  CHECK(has(result.out + result.err, "fc.weight (expected f32 [1000,512], got f32 [10,512])"));
}

TEST_CASE("a batch of other shapes, dtypes or labels ends with status 1 and nothing written") {
  const TemporaryFolder files, outputs;
  const std::string path = files / "batch";
  const auto refused = [&](const TensorDict& batch, const std::string& message,
                           const std::string& more = "") {
    save_safetensors(path, batch);
    for (const std::string mode : {"train", "infer"})
      check_refused(mode + " --arch resnet18 --steps 1 --batch " + path + " --dump-output " +
                        outputs / "logits" + " " + more,
                    1, message);
    CHECK(outputs.count() == 0);
  };
  const Tensor input = randn({2, 3, 40, 33}), target = from_vector<int64_t>({1, 2});

  refused({{"target", target}}, "[batch]");
  refused({{"input", input}}, "\"target\" i64 [2], got none");
  refused({{"input", randn({2, 4, 40, 33})}, {"target", target}},
          "\"input\" f32 or f16 [N,3,H,W], not empty, got f32 [2,4,40,33]");
  refused({{"input", randn({2, 3, 40})}, {"target", target}}, "got f32 [2,3,40]");
  refused({{"input", randn({2, 3, 40, 33}, DType::f64)}, {"target", target}},
          "got f64 [2,3,40,33]");
  refused({{"input", zeros({0, 3, 40, 33})}, {"target", zeros({0}, DType::i64)}}, "not empty");
  refused({{"input", input}, {"target", from_vector<int64_t>({1, 2, 3})}},
          "\"target\" i64 [2], got i64 [3]");
  refused({{"input", input}, {"target", from_vector<int32_t>({1, 2})}},
          "\"target\" i64 [2], got i32 [2]");
  refused({{"input", input}, {"target", from_vector<int64_t>({1, 1000})}},
          "labels of 0..999, got 1000");
  refused({{"input", input}, {"target", from_vector<int64_t>({-1, 1})}},
          "labels of 0..999, got -1");
  refused({{"input", input}, {"target", target}}, "3 images (--batch-size), got f32 [2,3,40,33]",
          "-b 3");
  refused({{"input", input}, {"target", target}}, "40x40 pixels (--image-size)", "--image-size 40");
}

TEST_CASE("outputs are checked before the training starts") {
  const TemporaryFolder folder;
  for (const std::string option : {"--save", "--dump-grads", "--dump-output", "--json"}) {
    const std::string missing = folder / "missing/file", directory = folder / "";
    check_refused("train " + kTiny + option + " " + missing, 1,
                  "[train] " + option + ": expected a writable file, got " + missing);
    check_refused("train " + kTiny + option + " " + directory, 1, "not a regular file");
    check_refused("train " + kTiny + option + " /dev/full", 1, "not a regular file");
    CHECK(resnet50("train " + kTiny + option + " " + missing).out.empty());
  }
}
