#include "pictures.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "console.h"
#include "data.h"
#include "model.h"
#include "output.h"
#include "quern/autograd/grad_mode.h"
#include "quern/nn/file.h"
#include "quern/nn/image_transform.h"
#include "quern/ops/autocast.h"
#include "quern/ops/softmax.h"
#include "quern/tensor/parallel.h"
#include "quern/tensor/raw.h"

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
  const auto format =
      options.channels_last ? MemoryFormat::channels_last : MemoryFormat::contiguous;
  const auto count = static_cast<int64_t>(options.pictures.size());
  const int64_t size = options.image_size.value_or(224), step = options.batch_size.value_or(16);

  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (int64_t first = 0; first < count; first += step) {
    const int64_t n = std::min(step, count - first);
    const Tensor input = empty({n, 3, size, size}, DType::f32, format);
    parallel_for(n, [&](int64_t i) {
      show(raw::select(input, 0, i), options, options.pictures[static_cast<size_t>(first + i)]);
    });
    const Tensor probabilities = raw::contiguous(softmax(raw::to(model(input), DType::f32), 1));
    const Tensor target = empty({n}, DType::i64);
    for (int64_t i = 0; i < n; ++i) {
      const std::string& path = options.pictures[static_cast<size_t>(first + i)];
      print(path + "\n");
      nlohmann::ordered_json found = nlohmann::ordered_json::array();
      const auto classes =
          best(probabilities.data<float>() + i * options.num_classes, options.num_classes);
      target.out<int64_t>()[i] = classes.front().index;
      for (const auto& [index, probability] : classes) {
        print(fmt::format("  {:6.2f}%  {}\n", 100 * probability, name_of(index)));
        found.push_back(
            {{"class", name_of(index)}, {"index", index}, {"probability", probability}});
      }
      json.push_back({{"picture", path}, {"best", found}});
    }
    if (!options.dump_input.empty()) save_batch(options.dump_input, {input, target});
  }
  using Json = nlohmann::ordered_json;
  if (!options.json.empty())
    write_text(options.json, json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace resnet50
