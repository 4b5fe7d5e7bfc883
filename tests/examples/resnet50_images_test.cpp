// resnet50 on folders of pictures.
#include <doctest/doctest.h>
#include <fmt/core.h>

#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "examples/program.h"
#include "quern/nn/safetensors.h"

using namespace quern;
using namespace quern::testing;
namespace fs = std::filesystem;

namespace {

const std::string kTiny = " --arch mobilenet_v2 --image-size 32 -b 4 ";

/// The file of a golden picture.
std::string picture(const std::string& name) {
  const TensorDict goldens = load_safetensors(QUERN_GOLDENS "/images.safetensors");
  const Tensor& file = goldens.at(name + ".file");
  return {reinterpret_cast<const char*>(file.data<uint8_t>()), static_cast<size_t>(file.numel())};
}

/// train: three classes of 5, 4 and 1 pictures, one in a folder of its own; val: two of the
/// classes. What is no picture lies between them.
struct Pictures {
  Pictures() {
    for (const char* path : {"train/ape", "train/bee/deep", "train/cow", "val/ape", "val/cow"})
      fs::create_directories(folder / path);
    const std::string jpeg = picture("jpeg_420"), png = picture("png_rgb_8");
    for (const char* name : {"1.jpg", "2.JPEG", "3.jpeg"})
      folder.write(std::string("train/ape/") + name, jpeg);
    for (const char* name : {"4.png", "5.PNG"}) folder.write(std::string("train/ape/") + name, png);
    folder.write("train/bee/1.jpg", picture("jpeg_cmyk"));
    folder.write("train/bee/2.jpg", picture("jpeg_exif_6"));
    folder.write("train/bee/3.png", picture("png_palette_4"));
    folder.write("train/bee/deep/4.jpg", picture("jpeg_progressive"));
    folder.write("train/cow/1.png", picture("png_grey_16"));
    folder.write("train/cow/notes.txt", "moo");
    folder.write("train/readme.jpg", "no folder");
    folder.write("val/ape/1.jpg", jpeg);
    folder.write("val/cow/1.png", picture("png_grey_16"));
  }
  TemporaryFolder folder;
};

Run resnet50(const std::string& args) { return run(QUERN_RESNET50 " " + args); }

std::string succeed(const std::string& args) {
  const Run result = resnet50(args);
  CAPTURE(args);
  CAPTURE(result.err);
  REQUIRE(result.status == 0);
  return result.out;
}

/// The message of a run that fails.
std::string refused(const std::string& args) {
  const Run result = resnet50(args);
  CAPTURE(args);
  CHECK(result.status == 1);
  return result.err;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a folder trains with the same bits for any number of workers and threads") {
  const Pictures pictures;
  const TemporaryFolder& folder = pictures.folder;
  const std::string train = "train " + (folder / "") + kTiny + "--epochs 3 --seed 5 --save " +
                            (folder / "w") + " --dump-input " + (folder / "i");
  std::string weights, batch;
  for (const char* options : {"-j 0", "-j 1", "-j 3", "-j 0 --threads 1", "-j 9 --threads 3"}) {
    CAPTURE(options);
    const std::string out = succeed(train + " " + options);
    CHECK(contains(out, "Epoch: [2][1/2]"));  // ten pictures: two batches of four
    CHECK(contains(out, "held out: top-1"));
    if (weights.empty()) weights = folder.read("w"), batch = folder.read("i");
    CHECK(folder.read("w") == weights);
    CHECK(folder.read("i") == batch);
  }
  CHECK(load_safetensors(folder / "w").at("classifier.1.weight").shape() == Shape{3, 1280});
  CHECK(load_safetensors_metadata(folder / "w").at("classes") == R"(["ape","bee","cow"])");

  // Whatever else is drawn.
  const std::string more =
      " --auto-augment ta_wide --random-erase 0.5 --mixup-alpha 0.2 --cutmix-alpha 1 -j ";
  succeed(train + more + "0");
  weights = folder.read("w");
  CHECK(folder.read("i") != batch);
  succeed(train + more + "2");
  CHECK(folder.read("w") == weights);

  // Another seed, another order and other crops.
  succeed("train " + (folder / "") + kTiny + "--epochs 3 --seed 6 --dump-input " + (folder / "i"));
  CHECK(folder.read("i") != batch);
  // What was dumped can be trained on.
  CHECK(
      contains(succeed("train --arch resnet18 --num-classes 3 --steps 1 --batch " + (folder / "i")),
               "[4,3,32,32]"));
}

TEST_CASE("a folder goes on where a run ended, within an epoch too") {
  const Pictures pictures;
  const TemporaryFolder& folder = pictures.folder;
  const std::string train =
      "train " + (folder / "") + " --arch mobilenet_v2 --image-size 32 -b 2 --lr 0.01 -j 2 ";
  succeed(train + "--epochs 3 --save " + (folder / "whole"));
  succeed(train + "--epochs 2 --checkpoint-every 3 --keep 9 --output-dir " + (folder / "run"));
  // Of checkpoints 3, 5, 6, 9, 10 the one in the middle of the second epoch.
  for (const char* later : {"09", "10"})
    fs::remove(folder / (std::string("run/checkpoint-000000") + later + ".safetensors"));
  fs::remove(folder / "run/best.safetensors");
  const std::string out = succeed(train + "--epochs 3 --resume auto --output-dir " +
                                  (folder / "run") + " --save " + (folder / "resumed"));
  CHECK(contains(out, "step 6 of 15"));
  const TensorDict whole = load_safetensors(folder / "whole"),
                   resumed = load_safetensors(folder / "resumed");
  for (const auto& [name, tensor] : whole) {
    CAPTURE(name);
    CHECK(std::memcmp(tensor.data_ptr(), resumed.at(name).data_ptr(),
                      static_cast<size_t>(tensor.nbytes())) == 0);
  }
  CHECK(contains(
      load_safetensors_metadata(folder / "run/checkpoint-00000015.safetensors").at("classes"),
      "ape"));
}

TEST_CASE("eval counts right answers, infer names the best classes") {
  const Pictures pictures;
  const TemporaryFolder& folder = pictures.folder;
  const std::string weights = " --weights " + (folder / "w"),
                    small = " --arch resnet18 --image-size 32";
  succeed("train " + (folder / "") + small + " -b 4 --epochs 2 --save " + (folder / "w"));

  const std::string out =
      succeed("eval " + (folder / "") + small + weights + " --json " + (folder / "json"));
  CHECK(contains(out, "2 images: top-1 "));
  const auto json = nlohmann::json::parse(folder.read("json"));
  CHECK(json.at("images") == 2);
  CHECK(json.at("top5") == 100);  // of three classes
  // A folder of classes alone, and any number of workers: the same.
  for (const char* workers : {" -j 0", " -j 2"}) {
    succeed("eval " + (folder / "val") + small + weights + workers + " -b 1 --json " +
            (folder / "again"));
    CHECK(nlohmann::json::parse(folder.read("again")).at("top1") == json.at("top1"));
  }

  const std::string one = folder / "val/ape/1.jpg", other = folder / "val/cow/1.png";
  const std::string table =
      succeed("infer " + one + " " + other + small + weights + " --json " + (folder / "json"));
  CHECK(contains(table, one + "\n"));
  CHECK(contains(table, "%  ape\n"));
  const auto found = nlohmann::json::parse(folder.read("json"));
  REQUIRE(found.size() == 2);
  CHECK(found[1].at("picture") == other);
  double sum = 0, last = 1;
  for (const auto& best : found[0].at("best")) {
    const double p = best.at("probability");
    CHECK(p <= last);
    sum += last = p;
  }
  CHECK(sum == doctest::Approx(1).epsilon(1e-5));

  // What cannot be read costs no other picture its answer.
  folder.write("torn.png", picture("png_rgb_8").substr(0, 90));
  const Run mixed =
      resnet50("infer " + (folder / "none.png") + " " + other + " " + (folder / "torn.png") + " " +
               one + small + weights + " --json " + (folder / "json"));
  CHECK(mixed.status == 1);
  CHECK(contains(mixed.err, "none.png: expected a readable file"));
  CHECK(contains(mixed.err, "got 2 broken of 4"));
  CHECK(contains(mixed.out, one + "\n"));
  const auto answered = nlohmann::json::parse(folder.read("json"));
  REQUIRE(answered.size() == 4);
  CHECK(contains(answered[2].at("error"), "torn.png"));
  CHECK(answered[1] == found[1]);
  CHECK(answered[3] == found[0]);

  // From standard input the same, but for its name.
  succeed("infer - " + small + weights + " --json " + (folder / "again") + " < " + one);
  CHECK(nlohmann::json::parse(folder.read("again"))[0].at("best") == found[0].at("best"));
  folder.write("names", "x\ny y\nz\n");
  CHECK(contains(succeed("infer " + one + small + weights + " --labels " + (folder / "names")),
                 "%  y y\n"));
  folder.write("names", "x\n");
  CHECK(contains(refused("infer " + one + small + weights + " --labels " + (folder / "names")),
                 "--labels: expected 3 lines"));
  CHECK(contains(refused("infer " + (folder / "names") + small + weights),
                 "expected a JPEG or PNG file"));
}

TEST_CASE("broken pictures are named, and left out on request") {
  const Pictures pictures;
  const TemporaryFolder& folder = pictures.folder;
  const std::string jpeg = picture("jpeg_444");
  folder.write("train/bee/9.jpg", jpeg.substr(0, jpeg.size() / 2));
  folder.write("train/bee/8.png", "");
  const std::string train =
      "train " + (folder / "") + " --arch mobilenet_v2 --image-size 32 -b 6 --epochs 2 ";
  for (const char* workers : {"-j 0", "-j 2"}) {
    const std::string error = refused(train + workers);
    CHECK((contains(error, "train/bee/9.jpg: expected a JPEG file with an end") ||
           contains(error, "train/bee/8.png: expected a JPEG or PNG")));
    const Run skipped = resnet50(train + "--skip-broken " + workers);
    CHECK(skipped.status == 0);
    CHECK(contains(skipped.err, "warning: broken picture 2: "));
    CHECK(!contains(skipped.err, "broken picture 3"));  // said once, in whatever epoch
  }
}

TEST_CASE(
    "a broken picture ends a run with a checkpoint, from where it goes on once it is mended") {
  const Pictures pictures;
  const TemporaryFolder& folder = pictures.folder;
  const std::string train = "train " + (folder / "") + kTiny + "--epochs 3 --model-ema -j 2 ";
  succeed(train + "--save " + (folder / "whole"));
  // In training it comes within the first epoch or the second, which leaves two pictures out; held
  // out, it comes after the first.
  const std::string jpeg = picture("jpeg_420");
  for (const char* broken : {"train/ape/2.JPEG", "val/ape/1.jpg"}) {
    CAPTURE(broken);
    folder.write(broken, jpeg.substr(0, jpeg.size() / 2));
    const std::string run = folder / (broken[0] == 't' ? "run" : "run2"),
                      resumable = train + "--resume auto --output-dir " + run;
    CHECK(contains(refused(resumable), std::string(broken) + ": expected a JPEG file with an end"));
    folder.write(broken, jpeg);
    const std::string out = succeed(resumable + " --save " + (folder / "resumed"));
    if (broken[0] == 'v') CHECK(contains(out, "step 2 of 6"));
    CHECK(folder.read("resumed") == folder.read("whole"));
  }
}

TEST_CASE("folders that cannot be trained on") {
  const Pictures pictures;
  const TemporaryFolder& folder = pictures.folder;
  const auto train = [&](const std::string& path) { return refused("train " + path + kTiny); };
  CHECK(contains(train(folder / "none"),
                 "none/train: expected a readable folder, got: No such file"));
  CHECK(contains(train(folder / "val"), "val/train: expected a readable folder"));
  fs::create_directories(folder / "empty/train");
  CHECK(contains(train(folder / "empty"), "expected a folder for each class, got none"));
  fs::create_directories(folder / "empty/train/yak");
  CHECK(contains(train(folder / "empty"), "got none in yak"));
  fs::create_directory_symlink(".", folder / "train/ape/back");  // leads round and round
  succeed("train " + (folder / "") + kTiny + "--epochs 1");
  fs::create_directories(folder / "val/yak");
  CHECK(contains(train(folder / ""), "got none in yak"));
  folder.write("val/yak/1.png", picture("png_rgb_8"));
  CHECK(contains(train(folder / ""), "expected the classes that were trained, got also yak"));
  CHECK(contains(refused("train " + (folder / "") + kTiny + "--num-classes 2"),
                 "expected at most 2 classes"));
  CHECK(resnet50("train " + (folder / "") + kTiny + "--steps 3").status == 2);
  for (const char* wrong :
       {"--scale 0 1", "--scale 0.5 0.4", "--scale 0.5 1.1", "--ratio 2 nan", "--hflip 2"})
    CHECK(resnet50("train " + (folder / "") + kTiny + wrong).status == 2);
  CHECK(resnet50("eval " + (folder / "")).status == 2);
}
