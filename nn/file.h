// A file of the system's.
#pragma once
#include <sys/stat.h>

#include <cstdint>
#include <string>

namespace quern {

/// Closed at the end of its scope. Where a call returns false, errno says why.
class File {
 public:
  File() = default;
  /// Never one of the standard streams, where they are closed: what is printed would go into it.
  File(const std::string& path, int flags, mode_t mode = 0666);
  ~File();
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;

  /// What errno says, in words.
  static std::string reason();

  bool is_open() const { return fd_ >= 0; }
  int descriptor() const { return fd_; }
  struct stat status() const;
  /// Is it `path`, and not another file that came to bear the name?
  bool is_at(const std::string& path) const;

  /// False if the file ends (errno 0) or fails before `bytes` are read.
  bool read(void* data, int64_t bytes) const;
  /// The same from `offset` on; where read() goes on does not change.
  bool read_at(void* data, int64_t bytes, int64_t offset) const;
  bool write(const void* data, int64_t bytes) const;
  bool write_at(const void* data, int64_t bytes, int64_t offset) const;
  /// To disk.
  bool sync() const;
  /// Keeps others from locking it, for as long as it is open. Does not wait for them.
  bool lock() const;
  /// The same beside others that do so, which keeps lock() out. Waits for that.
  bool lock_shared() const;
  void unlock() const;

 private:
  int fd_ = -1;
};

}  // namespace quern
