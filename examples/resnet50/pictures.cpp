#include "pictures.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>

#include "console.h"
#include "data.h"
#include "model.h"
#include "quern/autograd/grad_mode.h"
#include "quern/nn/file.h"
#include "quern/nn/image_transform.h"
#include "quern/ops/autocast.h"
#include "quern/ops/slice.h"
#include "quern/ops/softmax.h"
#include "quern/tensor/parallel.h"
#include "quern/tensor/raw.h"
#include "write_text.h"

namespace resnet50 {

using namespace quern;

namespace {

constexpr size_t kBest = 5;
constexpr size_t kMaxInput = size_t{1} << 30;  // bytes of standard input

std::string read_standard_input() {
  std::string bytes;
  char block[1 << 16];
  ssize_t count = 0;
  while ((count = ::read(STDIN_FILENO, block, sizeof block)) != 0) {
    if (count < 0 && errno == EINTR) continue;
    check(count > 0, "infer", "-: expected a readable standard input, got: {}", File::reason());
    bytes.append(block, static_cast<size_t>(count));
    check(bytes.size() <= kMaxInput, "infer", "-: expected a picture of at most {} bytes, got more",
          kMaxInput);
  }
  return bytes;
}

std::vector<std::string> read_labels(const std::string& path, int64_t classes) {
  std::ifstream file(path);
  std::vector<std::string> labels;
  for (std::string line; std::getline(file, line);) {
    if (line.ends_with('\r')) line.pop_back();
    labels.push_back(line);
  }
  check(file.eof(), "infer", "--labels: expected a readable file, got {}", path);
  check(static_cast<int64_t>(labels.size()) == classes, "infer",
        "--labels: expected {} lines, one a class, got {}", classes, labels.size());
  return labels;
}

void show(const Tensor& out, const Options& options, const std::string& path) {
  const std::string bytes = path == "-" ? read_standard_input() : "";
  const ImageDecoder picture =
      path == "-" ? ImageDecoder(bytes, "standard input") : ImageDecoder::open(path);
  const ImageView view = resized_center(picture.height(), picture.width(), options.resize_size(),
                                        options.image_size.value_or(224));
  normalize_image(out, decode_view(picture, view));
}

struct Class {
  int64_t index;
  float probability;
};

std::vector<Class> best(const float* probabilities, int64_t classes) {
  std::vector<Class> all(static_cast<size_t>(classes));
  for (int64_t i = 0; i < classes; ++i) all[static_cast<size_t>(i)] = {i, probabilities[i]};
  const auto end = all.begin() + std::min<int64_t>(kBest, classes);
  // NaN, which is in no order, is less than any.
  const auto rank = [](const Class& c) {
    return c.probability == c.probability ? c.probability : -1;
  };
  std::partial_sort(all.begin(), end, all.end(), [&](const Class& a, const Class& b) {
    return rank(a) != rank(b) ? rank(a) > rank(b) : a.index < b.index;
  });
  all.erase(end, all.end());
  return all;
}

/// What can be read of the pictures paths[0..n): input f32 [N, 3, S, S] of the N ≤ n whole ones, in
/// their order, and of each picture why it is none of them, or nothing. Broken ones are named on
/// standard error.
struct Shown {
  Tensor input;
  std::vector<std::string> errors;
};

Shown show(std::span<const std::string> paths, const Options& options) {
  const auto n = static_cast<int64_t>(paths.size()), size = options.image_size.value_or(224);
  const auto format =
      options.channels_last ? MemoryFormat::channels_last : MemoryFormat::contiguous;
  Shown shown{empty({n, 3, size, size}, DType::f32, format),
              std::vector<std::string>(paths.size())};
  const auto& [input, errors] = shown;
  parallel_for(n, [&](int64_t i) {
    const auto at = static_cast<size_t>(i);
    try {
      show(raw::select(input, 0, i), options, paths[at]);
    } catch (const Error& error) {
      shown.errors[at] = error.what();
    }
  });
  int64_t whole = 0;
  for (int64_t i = 0; i < n; ++i) {
    const std::string& error = errors[static_cast<size_t>(i)];
    if (!error.empty()) print_error("error: " + error);
    else if (whole++ != i) raw::copy_(raw::select(input, 0, whole - 1), raw::select(input, 0, i));
  }
  shown.input = narrow(input, 0, 0, whole);
  return shown;
}

}  // namespace

void infer_pictures(const Options& given) {
  Options options = given;
  const WeightsClasses trained = classes_of(options.weights);
  if (!options.num_classes_given) options.num_classes = trained.count;
  std::vector<std::string> names = trained.names;
  if (!options.labels.empty()) names = read_labels(options.labels, options.num_classes);
  const auto name_of = [&](int64_t i) {
    return static_cast<size_t>(i) < names.size() ? names[static_cast<size_t>(i)]
                                                 : std::to_string(i);
  };
  const auto network = make_model(options);
  nn::Module& model = *network;
  model.eval();
  const NoGradGuard no_grad;
  const AutocastGuard autocast(options.amp);
  const auto tell = [&](const std::string& path, const std::vector<Class>& classes) {
    print(path + "\n");
    nlohmann::ordered_json found = nlohmann::ordered_json::array();
    for (const auto& [index, probability] : classes) {
      print(fmt::format("  {:6.2f}%  {}\n", 100 * probability, name_of(index)));
      found.push_back({{"class", name_of(index)}, {"index", index}, {"probability", probability}});
    }
    return found;
  };
  const std::span<const std::string> pictures = options.pictures;
  const auto step = static_cast<size_t>(options.batch_size.value_or(16));

  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  size_t broken = 0;
  for (size_t first = 0; first < pictures.size(); first += step) {
    const auto paths = pictures.subspan(first, std::min(step, pictures.size() - first));
    const auto [input, errors] = show(paths, options);
    const int64_t whole = input.size(0);
    const Tensor target = empty({whole}, DType::i64);
    Tensor probabilities;
    if (whole > 0) probabilities = raw::contiguous(softmax(raw::to(model(input), DType::f32), 1));
    int64_t row = 0;
    for (size_t i = 0; i < paths.size(); ++i) {
      if (!errors[i].empty()) {
        ++broken;
        json.push_back({{"picture", paths[i]}, {"error", errors[i]}});
        continue;
      }
      const auto classes =
          best(probabilities.data<float>() + row * options.num_classes, options.num_classes);
      target.out<int64_t>()[row++] = classes.front().index;
      json.push_back({{"picture", paths[i]}, {"best", tell(paths[i], classes)}});
    }
    if (!options.dump_input.empty() && whole > 0) save_batch(options.dump_input, {input, target});
  }
  using Json = nlohmann::ordered_json;
  if (!options.json.empty())
    write_text(options.json, json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  check(broken == 0, "infer", "expected whole pictures, got {} broken of {}", broken,
        pictures.size());
}

}  // namespace resnet50
