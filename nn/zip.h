// Zip files whose entries are stored and not compressed, as torch.save writes them. Internal to
// pth.cpp.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "quern/nn/file.h"

struct zip;

namespace quern {

class ZipFile {
 public:
  struct Entry {
    uint64_t index;
    int64_t bytes;
  };

  /// Errors name `path`, which must outlive this: not a zip file; a build without libzip.
  ZipFile(const std::string& path, const File& file);

  uint64_t num_entries() const;
  std::string name(uint64_t index) const;
  bool contains(const std::string& name) const;
  /// Errors: no entry of this name; one that is compressed, encrypted or larger than the file.
  Entry find(const std::string& name) const;
  /// All of an entry, straight from the file. Error: it ends, or its checksum is another.
  void read(const Entry& entry, void* data) const;

 private:
  struct Close {
    void operator()(zip* archive) const;
  };
  const std::string& path_;
  const int64_t file_bytes_;
  std::unique_ptr<zip, Close> zip_;
};

}  // namespace quern
