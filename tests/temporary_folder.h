// A folder that lives as long as the test, and files.
#pragma once
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>

namespace quern::testing {

inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write_file(const std::string& path, const std::string& bytes) {
  std::filesystem::remove(path);  // a new file is not flushed on close, a truncated one may be
  std::ofstream(path, std::ios::binary) << bytes;
}

/// A new folder, removed with all that is in it at the end of its scope.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = std::filesystem::temp_directory_path() / "quern-XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp " + name);
    path_ = name;
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string operator/(const std::string& name) const { return path_ / name; }
  /// The path of a new file.
  std::string write(const std::string& name, const std::string& bytes) const {
    write_file(*this / name, bytes);
    return *this / name;
  }
  std::string read(const std::string& name) const { return read_file(*this / name); }
  /// Of its files, links and folders.
  size_t count() const {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(path_), {}));
  }

 private:
  std::filesystem::path path_;
};

}  // namespace quern::testing
