// Files that are there whole or not at all.
#pragma once
#include <string>
#include <string_view>

#include "quern/nn/file.h"

namespace quern {

/// A new file that takes the place of `path`. Until commit(), and after an error, an older file is
/// as it was. The new one has its permissions, and its owner as far as the system allows. Where
/// `path` is a symbolic link, the file that it leads to is replaced, or made.
///
/// It is written in the same folder, to a file without a name where the file system has such: one
/// that ends with the process, however that ends. Elsewhere it is a locked ".quern-N.tmp", which
/// the next replacement in the folder removes once nobody holds the lock. Any number of threads and
/// processes may replace one file: each succeeds, and the last to commit stays.
class FileReplacement {
 public:
  enum class Temporary { unnamed_if_possible, named };

  /// Errors begin with "[op] path: ": those of why_not_replaceable(), and the system's.
  FileReplacement(std::string_view op, const std::string& path,
                  Temporary temporary = Temporary::unnamed_if_possible);
  ~FileReplacement();
  FileReplacement(const FileReplacement&) = delete;
  FileReplacement& operator=(const FileReplacement&) = delete;

  void write(const void* data, int64_t bytes);
  /// Makes it this long: what was not written is zeros, and takes no room where the file system has
  /// sparse files.
  void resize(int64_t bytes);
  /// Returns when all that was written is on the disk and bears the name.
  void commit();

 private:
  void open_unnamed(mode_t mode);
  void open_named(mode_t mode);
  void give_name();
  void be_as(const struct stat& old);
  std::string temporary_name(int i) const;
  void require(bool ok) const;

  const std::string op_, path_;
  const std::string target_, folder_;  // of path, with all links followed
  File file_;
  std::string temporary_;  // its name; empty where it has none, and once it is in place
};

/// "" if `path` can be replaced, as far as can be told without trying, else why not: not a regular
/// file, write-protected, a folder that is missing or not writable, a loop of symbolic links.
std::string why_not_replaceable(const std::string& path);

}  // namespace quern
