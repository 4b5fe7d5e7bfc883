#include "quern/nn/file_replacement.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "quern/tensor/check.h"

namespace quern {
namespace {

namespace fs = std::filesystem;

/// What `path` leads to, whether there is a file or not yet.
std::string follow_links(const fs::path& path) {
  fs::path at = path;
  for (int links = 0; links < 40; ++links) {  // as many as Linux follows
    std::error_code not_a_link;
    const fs::path to = fs::read_symlink(at, not_a_link);
    if (not_a_link) break;
    at = at.parent_path() / to;
  }
  return at.string();
}

std::string folder_of(const fs::path& path) {
  const fs::path folder = path.parent_path();
  return folder.empty() ? "." : folder.string();
}

/// What a process that was killed has left. A living one holds the lock of its file. (GNU's
/// fs::directory_iterator ends the program where memory ends.)
void remove_dead_temporaries(const std::string& folder) {
  const auto close = [](DIR* entries) { ::closedir(entries); };
  const std::unique_ptr<DIR, decltype(close)> entries(::opendir(folder.c_str()), close);
  while (const dirent* entry = entries ? ::readdir(entries.get()) : nullptr) {
    const std::string_view name = entry->d_name;
    if (!name.starts_with(".quern-") || !name.ends_with(".tmp")) continue;
    const std::string path = fmt::format("{}/{}", folder, name);
    const File file(path, O_WRONLY | O_NOFOLLOW | O_NONBLOCK);
    // Its owner may have renamed it since: it is of this name now, and as long as it is locked
    // here.
    if (file.is_open() && file.lock() && file.is_at(path)) ::unlink(path.c_str());
  }
}

/// A way to a file that has no name.
std::string in_proc(const File& file) { return fmt::format("/proc/self/fd/{}", file.descriptor()); }

}  // namespace

std::string why_not_replaceable(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) {
    if (!S_ISREG(status.st_mode)) return "not a regular file";
    if (::eaccess(path.c_str(), W_OK) != 0) return File::reason();
  } else if (errno != ENOENT || path.empty()) {
    return File::reason();
  }
  const std::string folder = folder_of(follow_links(path));
  return ::eaccess(folder.c_str(), W_OK | X_OK) == 0 ? "" : File::reason();
}

FileReplacement::FileReplacement(std::string_view op, const std::string& path, Temporary temporary)
    : op_(op), path_(path), target_(follow_links(path)), folder_(folder_of(target_)) {
  const std::string reason = why_not_replaceable(path);
  check(reason.empty(), op_, "{}: expected a writable file, got: {}", path_, reason);
  remove_dead_temporaries(folder_);

  struct stat old {};
  const bool exists = ::stat(target_.c_str(), &old) == 0;
  const mode_t mode = exists ? 0600 : 0666;  // nobody else's business before be_as()
  if (temporary == Temporary::unnamed_if_possible) open_unnamed(mode);
  if (!file_.is_open()) open_named(mode);
  if (exists) be_as(old);
}

FileReplacement::~FileReplacement() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void FileReplacement::write(const void* data, int64_t bytes) { require(file_.write(data, bytes)); }

void FileReplacement::resize(int64_t bytes) {
  require(::ftruncate(file_.descriptor(), bytes) == 0);
}

void FileReplacement::commit() {
  require(file_.sync());
  if (temporary_.empty()) give_name();
  require(std::rename(temporary_.c_str(), target_.c_str()) == 0);
  temporary_.clear();
  // The file is in place; syncing its folder only makes the new name outlast a power cut.
  const File folder(folder_, O_RDONLY | O_DIRECTORY);
  if (folder.is_open()) folder.sync();
}

/// Leaves file_ closed where that cannot be, or where the file could not be given a name later.
void FileReplacement::open_unnamed(mode_t mode) {
  File file(folder_, O_WRONLY | O_TMPFILE, mode);
  if (!file.is_open() || ::access(in_proc(file).c_str(), F_OK) != 0) return;
  file.lock();  // before it has a name, so that it is never taken for dead
  file_ = std::move(file);
}

void FileReplacement::open_named(mode_t mode) {
  for (int i = 0; !file_.is_open(); ++i) {
    std::string name = temporary_name(i);
    File file(name, O_WRONLY | O_CREAT | O_EXCL, mode);
    if (!file.is_open() && errno == EEXIST) continue;
    require(file.is_open());
    // Taken for dead before it was locked: whoever holds the lock removes it. (A file system that
    // has no locks fails otherwise, and never has one removed.)
    const bool lost = (!file.lock() && errno == EWOULDBLOCK) || !file.is_at(name);
    if (lost) continue;
    file_ = std::move(file);
    temporary_ = std::move(name);
  }
}

void FileReplacement::give_name() {
  const std::string from = in_proc(file_);
  for (int i = 0; temporary_.empty(); ++i) {
    std::string name = temporary_name(i);
    const int linked = ::linkat(AT_FDCWD, from.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW);
    require(linked == 0 || errno == EEXIST);
    if (linked == 0) temporary_ = std::move(name);
  }
}

/// Takes on the owner and the permissions of the old file. Who may not give files away keeps at
/// least the group; where not even that, the new group may do no more than everybody.
void FileReplacement::be_as(const struct stat& old) {
  const int fd = file_.descriptor();
  mode_t mode = old.st_mode & 0777;
  if (::fchown(fd, old.st_uid, old.st_gid) != 0 &&
      ::fchown(fd, static_cast<uid_t>(-1), old.st_gid) != 0)
    mode &= ~mode_t{070} | (mode & 07) << 3;
  ::fchmod(fd, mode);  // some file systems know no permissions: not worth failing
}

std::string FileReplacement::temporary_name(int i) const {
  return fmt::format("{}/.quern-{}.tmp", folder_, i);
}

void FileReplacement::require(bool ok) const {
  if (!ok) fail(op_, fmt::format("{}: expected a writable file, got: {}", path_, File::reason()));
}

}  // namespace quern
