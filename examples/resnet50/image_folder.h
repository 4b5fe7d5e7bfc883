// A folder of pictures with a folder for each class, as torchvision's ImageFolder reads it.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace resnet50 {

struct ImageFolder {
  struct Picture {
    std::string path;
    int64_t label;  // an index into classes
  };

  ImageFolder() = default;
  /// The classes are the folders of `path`, in the order of their names, and their pictures all
  /// files below them whose names end in .jpg, .jpeg or .png, of whatever case; links are followed.
  /// Other files are passed over. Errors: an unreadable folder, no classes,
  /// a class without pictures.
  explicit ImageFolder(const std::string& path);

  /// Gives pictures the labels that their classes have in `names`.
  /// Error: a class that is not there.
  void number_as(const std::vector<std::string>& names);

  std::string path;
  std::vector<std::string> classes;
  std::vector<Picture> pictures;
};

}  // namespace resnet50
