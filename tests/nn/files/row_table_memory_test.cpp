// Tables in files beside the memory that there is.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "child_process.h"
#include "quern/nn/embedding.h"
#include "quern/nn/file.h"
#include "quern/nn/row_table.h"
#include "quern/ops/rows.h"
#include "quern/ops/sum.h"
#include "quern/optim/optim.h"
#include "quern/tensor/random.h"
#include "quern/tensor/raw.h"
#include "temporary_folder.h"

using namespace quern;
using nn::RowTable;
using quern::testing::start, quern::testing::wait_for, quern::testing::TemporaryFolder;

namespace {

/// Of this process, in bytes.
int64_t resident_memory_without_a_file() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;)
    if (word == "RssAnon:") {
      int64_t kib = 0;
      status >> kib;
      return kib * 1024;
    }
  return -1;
}

/// A group of processes that have so much memory together, the pages of files that they read first
/// included: control groups of either version, which only root may make.
class MemoryLimit {
 public:
  explicit MemoryLimit(int64_t bytes) {
    const std::string name = fmt::format("quern_test_{}", ::getpid());
    for (const auto& [root, limit] : {std::pair("/sys/fs/cgroup", "memory.max"),
                                      {"/sys/fs/cgroup/memory", "memory.limit_in_bytes"}}) {
      folder_ = fmt::format("{}/{}", root, name);
      if (::mkdir(folder_.c_str(), 0755) != 0) continue;
      if (write(limit, bytes)) return;
      ::rmdir(folder_.c_str());
    }
    folder_.clear();
  }
  ~MemoryLimit() {
    if (holds()) ::rmdir(folder_.c_str());
  }
  bool holds() const { return !folder_.empty(); }
  /// For this process, from here on.
  bool enter() const { return write("cgroup.procs", ::getpid()); }

 private:
  bool write(const char* file, int64_t value) const {
    std::ofstream out(fmt::format("{}/{}", folder_, file));
    out << value << std::flush;
    return out.good();
  }
  std::string folder_;
};

}  // namespace

TEST_CASE("row table: memory follows the rows that are changed between flushes, not the table") {
  const TemporaryFolder folder;
  constexpr int64_t kRows = 500'000, kWidth = 64, kLookups = 1'000;  // 128 MB each, on no disk
  const pid_t trainer = start([&] {
    const int64_t before = resident_memory_without_a_file();
    RowTable table = RowTable::open(folder / "t", {kRows, kWidth, DType::f32, 2});
    nn::Embedding words(table.weight(), {.sparse = true});
    optim::Adam optimizer(words.parameters());
    optimizer.use_state(words.weight, table.state(), 0);
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      words(randint(0, kRows, {kLookups})).backward(ones({kLookups, kWidth}));
      optimizer.step();
      const int64_t page = ::sysconf(_SC_PAGESIZE),
                    used = resident_memory_without_a_file() - before;
      // The pages of three tensors, and what moving 1000 rows takes.
      if (table.dirty_bytes() > 3 * kLookups * page || used > 4 * kLookups * page + (16 << 20))
        ::_exit(2);
      table.flush(optimizer.steps(words.weight));
    }
    if (resident_memory_without_a_file() - before > 16 << 20) ::_exit(3);
  });
  CHECK(WEXITSTATUS(wait_for(trainer)) == 0);
}

TEST_CASE("row table: trains where there is half as much memory as the table has bytes") {
  constexpr int64_t kRows = 250'000, kWidth = 64, kLookups = 1'000;  // 64 MB each of three
  const MemoryLimit limit(96 << 20);
  if (!limit.holds()) {
    MESSAGE("skipped: no control group of memory can be made here");
    return;
  }
  const TemporaryFolder folder;
  const Tensor indices = randint(0, kRows, {4, kLookups});
  {
    RowTable table = RowTable::open(folder / "t", {kRows, kWidth, DType::f32, 2});
    raw::fill_(table.weight(), 0.5);
    for (const Tensor& s : table.state()) raw::fill_(s, 0.5);
    table.flush();
  }
  {  // The limit counts what its processes bring into memory: nothing is there before.
    const File file(folder / "t", O_RDONLY);
    REQUIRE(::posix_fadvise(file.descriptor(), 0, 0, POSIX_FADV_DONTNEED) == 0);
  }
  const auto train = [&] {
    RowTable table = RowTable::open(folder / "t", {kRows, kWidth, DType::f32, 2});
    nn::Embedding words(table.weight(), {.sparse = true});
    optim::Adam optimizer(words.parameters());
    optimizer.use_state(words.weight, table.state(), table.step());
    for (int64_t step = 0; step < 4; ++step) {
      const Tensor at = raw::select(indices, 0, step);
      table.fetch(at);
      optimizer.zero_grad();
      words(at).backward(ones({kLookups, kWidth}));
      optimizer.step();
      table.flush(optimizer.steps(words.weight));
    }
    // All of it is read, too, which is more than there is room for.
    for (const Tensor& t : {table.weight(), table.state()[0], table.state()[1]})
      if (sum(t).item() < 0.4 * kRows * kWidth) ::_exit(3);
  };
  const pid_t trainer = start([&] {
    if (!limit.enter()) ::_exit(2);
    train();
  });
  CHECK(wait_for(trainer) == 0);  // else it was killed for want of memory, or see above
  const RowTable table = RowTable::open(folder / "t", {.read_only = true});
  CHECK(table.generation() == 5);
  CHECK(table.step() == 4);
}

TEST_CASE("row table: a file system in memory has to have room for all of it") {
  const TemporaryFolder folder;
  const pid_t child = start([&] {  // in a file system that it alone sees
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("tmpfs", (folder / "").c_str(), "tmpfs", 0, "size=2m") != 0)
      ::_exit(77);
    RowTable small = RowTable::open(folder / "small", {1'000, 128});
    if (sum(small.weight()).item() != 0) ::_exit(2);
    try {
      RowTable::open(folder / "large", {10'000, 128});
    } catch (const Error& error) {
      const std::string text = error.what();
      ::_exit(text.find("bytes of room on a file system in memory, got") != text.npos ? 0 : 3);
    }
    ::_exit(4);
  });
  const int status = wait_for(child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
    MESSAGE("skipped: no tmpfs can be mounted here");
  else CHECK(status == 0);
}
