#include "quern/nn/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace quern {
namespace {

template <class Call, class Byte>
bool transfer(Call call, int fd, Byte* data, int64_t bytes) {
  while (bytes > 0) {
    errno = 0;
    const ssize_t done = call(fd, data, static_cast<size_t>(bytes));
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return false;
    data += done, bytes -= done;
  }
  return true;
}

}  // namespace

File::File(const std::string& path, int flags, mode_t mode)
    : fd_(::open(path.c_str(), flags | O_CLOEXEC, mode)) {
  if (fd_ < 0 || fd_ > STDERR_FILENO) return;
  const int low = std::exchange(fd_, ::fcntl(fd_, F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
  const int reason = errno;
  ::close(low);
  errno = reason;
}

File::~File() {
  if (is_open()) ::close(fd_);
}

File::File(File&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

File& File::operator=(File&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

std::string File::reason() { return std::generic_category().message(errno); }

struct stat File::status() const {
  struct stat status {};
  ::fstat(fd_, &status);
  return status;
}

bool File::is_at(const std::string& path) const {
  struct stat there {};
  const struct stat here = status();
  return ::lstat(path.c_str(), &there) == 0 && there.st_dev == here.st_dev &&
         there.st_ino == here.st_ino;
}

bool File::read(void* data, int64_t bytes) const {
  return transfer(::read, fd_, static_cast<char*>(data), bytes);
}

bool File::read_at(void* data, int64_t bytes, int64_t offset) const {
  const auto read = [&](int fd, char* to, size_t count) {
    const ssize_t done = ::pread(fd, to, count, offset);
    if (done > 0) offset += done;
    return done;
  };
  return transfer(read, fd_, static_cast<char*>(data), bytes);
}

bool File::write(const void* data, int64_t bytes) const {
  return transfer(::write, fd_, static_cast<const char*>(data), bytes);
}

bool File::write_at(const void* data, int64_t bytes, int64_t offset) const {
  const auto write = [&](int fd, const char* from, size_t count) {
    const ssize_t done = ::pwrite(fd, from, count, offset);
    if (done > 0) offset += done;
    return done;
  };
  return transfer(write, fd_, static_cast<const char*>(data), bytes);
}

bool File::sync() const { return ::fsync(fd_) == 0; }

bool File::lock() const { return ::flock(fd_, LOCK_EX | LOCK_NB) == 0; }

bool File::lock_shared() const {
  while (::flock(fd_, LOCK_SH) != 0)
    if (errno != EINTR) return false;
  return true;
}

void File::unlock() const { ::flock(fd_, LOCK_UN); }

}  // namespace quern
