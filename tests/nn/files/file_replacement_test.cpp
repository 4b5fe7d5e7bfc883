#include "quern/nn/file_replacement.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <grp.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <thread>
#include <vector>

#include "child_process.h"
#include "quern/tensor/check.h"
#include "temporary_folder.h"

using namespace quern;
using quern::testing::TemporaryFolder, quern::testing::start, quern::testing::wait_for;
using Temporary = FileReplacement::Temporary;

namespace {

constexpr Temporary kTemporaries[] = {Temporary::unnamed_if_possible, Temporary::named};

void replace(const std::string& path, const std::string& text,
             Temporary temporary = Temporary::unnamed_if_possible) {
  FileReplacement file("test", path, temporary);
  file.write(text.data(), static_cast<int64_t>(text.size()));
  file.commit();
}

/// The message of the error that replacing the file gives, after its beginning; "" if it gives
/// none.
std::string error_of(const std::string& path, const std::string& text = "new",
                     Temporary temporary = Temporary::unnamed_if_possible) {
  try {
    replace(path, text, temporary);
  } catch (const Error& error) {
    const std::string message = error.what(), prefix = "[test] " + path + ": ";
    REQUIRE(message.starts_with(prefix));
    return message.substr(prefix.size());
  }
  return "";
}

const std::string kRefused = "expected a writable file, got: ";

mode_t mode_of(const std::string& path) {
  struct stat status {};
  REQUIRE(::stat(path.c_str(), &status) == 0);
  return status.st_mode & 07777;
}

bool has_unnamed_files(const TemporaryFolder& folder) {
  const int fd = ::open((folder / "").c_str(), O_WRONLY | O_TMPFILE, 0600);
  if (fd >= 0) ::close(fd);
  return fd >= 0;
}

}  // namespace

TEST_CASE("file replacement: the old file stays until commit, and for good without") {
  for (const Temporary temporary : kTemporaries) {
    const TemporaryFolder folder;
    replace(folder / "f", "old", temporary);
    {
      FileReplacement file("test", folder / "f", temporary);
      file.write("new", 3);
      CHECK(folder.read("f") == "old");
    }
    CHECK(folder.read("f") == "old");
    CHECK(folder.count() == 1);
    replace(folder / "f", "new", temporary);
    CHECK(folder.read("f") == "new");
    CHECK(folder.count() == 1);
  }
}

TEST_CASE("file replacement: links are followed, to files that are there and that are not") {
  for (const Temporary temporary : kTemporaries) {
    const TemporaryFolder folder;
    const auto link = [&](const std::string& to, const std::string& name) {
      REQUIRE(::symlink(to.c_str(), (folder / name).c_str()) == 0);
    };
    const auto is_link = [&](const std::string& name) {
      return std::filesystem::is_symlink(folder / name);
    };
    std::filesystem::create_directory(folder / "sub");
    link("sub/../second", "first");
    link(folder / "sub/file", "second");
    link("sub", "also_sub");
    link("../upward", "sub/link");
    for (const std::string text : {"made", "replaced"}) {
      replace(folder / "first", text, temporary);
      CHECK(folder.read("sub/file") == text);
      replace(folder / "also_sub/link", text, temporary);
      CHECK(folder.read("upward") == text);
    }
    for (const char* name : {"first", "second", "also_sub", "sub/link"}) CHECK(is_link(name));

    link("loop", "loop");
    link("missing/file", "nowhere");
    link("sub", "folder");
    CHECK(error_of(folder / "loop") == kRefused + "Too many levels of symbolic links");
    CHECK(error_of(folder / "nowhere") == kRefused + "No such file or directory");
    CHECK(error_of(folder / "folder") == kRefused + "not a regular file");
    for (const char* name : {"loop", "nowhere", "folder"}) CHECK(is_link(name));
  }
}

TEST_CASE("file replacement: permissions and owner are the old file's") {
  const mode_t mask = ::umask(027);
  for (const Temporary temporary : kTemporaries) {
    const TemporaryFolder folder;
    const std::string path = folder / "f";
    replace(path, "new", temporary);
    CHECK(mode_of(path) == 0640);
    for (const mode_t mode : {0600, 0666, 0604, 0755}) {
      REQUIRE(::chmod(path.c_str(), mode) == 0);
      replace(path, "newer", temporary);
      CHECK(mode_of(path) == mode);
    }

    REQUIRE(::chmod(path.c_str(), 0440) == 0);
    if (::geteuid() != 0) {
      CHECK(error_of(path) == kRefused + "Permission denied");
    } else {  // may write what is write-protected, and give it away
      REQUIRE(::chown(path.c_str(), 1234, 5678) == 0);
      replace(path, "given", temporary);
      CHECK(mode_of(path) == 0440);
      struct stat status {};
      REQUIRE(::stat(path.c_str(), &status) == 0);
      CHECK(status.st_uid == 1234);
      CHECK(status.st_gid == 5678);
    }
  }
  ::umask(mask);
}

TEST_CASE("file replacement: who may not keep the group gives the new one no more than everybody") {
  if (::geteuid() != 0) {
    MESSAGE("skipped: a file of a foreign group is for root to make");
    return;
  }
  const TemporaryFolder folder;
  const std::string path = folder / "f";
  REQUIRE(::chmod((folder / "").c_str(), 0777) == 0);
  folder.write("f", "old");
  REQUIRE(::chown(path.c_str(), 1234, 5678) == 0);
  REQUIRE(::chmod(path.c_str(), 0666 & ~04) == 0);  // others may write it, not read it
  const pid_t stranger = start([&] {
    if (::setgroups(0, nullptr) != 0 || ::setgid(77) != 0 || ::setuid(77) != 0) ::_exit(2);
    replace(path, "new");
  });
  CHECK(wait_for(stranger) == 0);
  CHECK(folder.read("f") == "new");
  CHECK(mode_of(path) == 0622);
}

TEST_CASE("file replacement: errors leave the old file and nothing else") {
  CHECK(error_of("/dev/null") == kRefused + "not a regular file");
  CHECK(error_of("") == kRefused + "No such file or directory");
  for (const Temporary temporary : kTemporaries) {
    const TemporaryFolder folder;
    folder.write("f", "old");
    CHECK(error_of(folder / "") == kRefused + "not a regular file");
    CHECK(error_of(folder / "none/f") == kRefused + "No such file or directory");
    CHECK(error_of(folder / "f/f") == kRefused + "Not a directory");
    CHECK(error_of(folder / std::string(256, 'x')) == kRefused + "File name too long");

    // A disk that fills up in the middle, played by the limit on a file's size.
    rlimit before{}, limit{};
    REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
    limit = before;
    limit.rlim_cur = 4096;
    const auto handler = std::signal(SIGXFSZ, SIG_IGN);
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
    const std::string full_disk = error_of(folder / "f", std::string(8000, 'x'), temporary);
    ::setrlimit(RLIMIT_FSIZE, &before);
    std::signal(SIGXFSZ, handler);
    CHECK(full_disk == kRefused + "File too large");

    CHECK(folder.read("f") == "old");
    CHECK(folder.count() == 1);
  }
}

TEST_CASE("file replacement: a name may be as long as names can be") {
  const TemporaryFolder folder;
  const std::string name(255, 'x');
  for (const Temporary temporary : kTemporaries)
    for (const std::string text : {"first", "second"}) {
      replace(folder / name, text, temporary);
      CHECK(folder.read(name) == text);
    }
}

TEST_CASE(
    "file replacement: what a killed process leaves is removed, what a living one writes not") {
  for (const Temporary temporary : kTemporaries) {
    const TemporaryFolder folder;
    folder.write("f", "old");
    FileReplacement living("test", folder / "f", Temporary::named);
    for (int i = 0; i < 2; ++i) {
      const pid_t killed = start([&] {
        FileReplacement file("test", folder / "f", temporary);
        file.write("half", 4);
        ::kill(::getpid(), SIGKILL);
      });
      CHECK(WTERMSIG(wait_for(killed)) == SIGKILL);
      CHECK(folder.read("f") == "old");
      const bool leaves = temporary == Temporary::named || !has_unnamed_files(folder);
      CHECK(folder.count() == (leaves ? 3 : 2));  // f, living, and what is left
    }
    folder.write(".quern-9.tmp", "of a machine that crashed");
    folder.write("neighbour.tmp", "none of ours");
    replace(folder / "other", "new", temporary);
    CHECK(folder.count() == 4);
    CHECK(folder.read("neighbour.tmp") == "none of ours");
    living.write("new", 3);
    living.commit();
    CHECK(folder.read("f") == "new");
    CHECK(folder.count() == 3);
  }
}

TEST_CASE(
    "file replacement: threads and processes replace one file at a time, which is always whole") {
  constexpr int kRounds = 25, kLength = 20'000;
  for (const Temporary temporary : kTemporaries) {
    const TemporaryFolder folder;
    const std::string path = folder / "f";
    const auto work = [&](char letter) {
      for (int i = 0; i < kRounds; ++i) replace(path, std::string(kLength, letter), temporary);
    };
    work('0');
    std::vector<pid_t> processes;
    for (const char letter : {'1', '2'}) processes.push_back(start([&] { work(letter); }));
    std::vector<std::string> errors(2);
    std::vector<std::thread> threads;
    for (size_t i = 0; i < errors.size(); ++i)
      threads.emplace_back([&, i] {
        try {
          work(static_cast<char>('3' + i));
        } catch (const std::exception& error) {
          errors[i] = error.what();
        }
      });
    int broken = 0;
    for (int i = 0; i < 200; ++i) {
      const std::string text = folder.read("f");
      broken += text != std::string(kLength, text.empty() ? '?' : text[0]);
    }
    for (std::thread& thread : threads) thread.join();
    for (const pid_t process : processes) CHECK(wait_for(process) == 0);
    for (const std::string& error : errors) CHECK(error == "");
    CHECK(broken == 0);
    CHECK(folder.count() == 1);
    work('9');
    CHECK(folder.read("f") == std::string(kLength, '9'));
  }
}

TEST_CASE(
    "file replacement: what is printed where standard output is closed stays out of the file") {
  for (const Temporary temporary : kTemporaries) {
    const TemporaryFolder folder;
    const pid_t child = start([&] {
      for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::close(stream);
      FileReplacement file("test", folder / "f", temporary);
      std::fputs("noise", stderr);
      std::fputs("noise", stdout);
      std::fflush(stdout);
      file.write("text", 4);
      file.commit();
    });
    CHECK(wait_for(child) == 0);
    CHECK(folder.read("f") == "text");
  }
}
