#include "image_folder.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "quern/tensor/check.h"

namespace resnet50 {

namespace fs = std::filesystem;
using quern::check;

namespace {

constexpr std::string_view kOp = "images";

bool is_picture(const fs::path& path) {
  std::string end = path.extension().string();
  for (char& c : end)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return end == ".jpg" || end == ".jpeg" || end == ".png";
}

std::vector<fs::path> entries(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    found.push_back(at->path());
  check(!error, kOp, "{}: expected a readable folder, got: {}", folder.string(), error.message());
  return found;
}

/// Adds (folder, name) of the pictures of `folder` and of those below it. `above`: the folders that
/// it lies in, for links that lead back.
void collect(const fs::path& folder, std::vector<fs::path>& above,
             std::vector<std::pair<std::string, std::string>>& found) {
  const fs::path real = fs::canonical(folder);
  if (std::ranges::find(above, real) != above.end()) return;
  above.push_back(real);
  for (const fs::path& entry : entries(folder)) {
    std::error_code ignored;
    if (fs::is_directory(entry, ignored)) collect(entry, above, found);
    else if (is_picture(entry)) found.emplace_back(folder.string(), entry.filename().string());
  }
  above.pop_back();
}

/// "a, b, c", and how many more.
std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size() && i < 5; ++i) text += (i == 0 ? "" : ", ") + names[i];
  return names.size() > 5 ? fmt::format("{} and {} more", text, names.size() - 5) : text;
}

}  // namespace

ImageFolder::ImageFolder(const std::string& path) : path(path) {
  std::error_code ignored;
  for (const fs::path& entry : entries(path))
    if (fs::is_directory(entry, ignored)) classes.push_back(entry.filename().string());
  std::ranges::sort(classes);
  check(!classes.empty(), kOp, "{}: expected a folder for each class, got none", path);

  std::vector<std::string> without;
  for (size_t label = 0; label < classes.size(); ++label) {
    std::vector<std::pair<std::string, std::string>> found;
    std::vector<fs::path> above;
    collect(fs::path(path) / classes[label], above, found);
    std::ranges::sort(found);
    if (found.empty()) without.push_back(classes[label]);
    for (const auto& [folder, name] : found)
      pictures.push_back({folder + "/" + name, static_cast<int64_t>(label)});
  }
  check(without.empty(), kOp,
        "{}: expected .jpg, .jpeg or .png files in each class, got none in {}", path,
        listed(without));
}

void ImageFolder::number_as(const std::vector<std::string>& names) {
  std::vector<std::string> unknown;
  std::vector<int64_t> labels;
  for (const std::string& name : classes) {
    const auto at = std::ranges::find(names, name);
    if (at == names.end()) unknown.push_back(name);
    labels.push_back(at - names.begin());
  }
  check(unknown.empty(), kOp, "{}: expected the classes that were trained, got also {}", path,
        listed(unknown));
  for (Picture& picture : pictures) picture.label = labels[static_cast<size_t>(picture.label)];
  classes = names;
}

}  // namespace resnet50
