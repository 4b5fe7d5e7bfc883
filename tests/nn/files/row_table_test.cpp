#include "quern/nn/row_table.h"

#include <doctest/doctest.h>
#include <grp.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <functional>
#include <thread>

#include "child_process.h"
#include "gradcheck_helper.h"
#include "quern/nn/embedding.h"
#include "quern/nn/row_table_file.h"
#include "quern/ops/rows.h"
#include "quern/optim/optim.h"
#include "quern/tensor/random.h"
#include "quern/tensor/raw.h"
#include "temporary_folder.h"

using namespace quern;
using nn::RowTable, nn::RowTableOptions;
using quern::testing::start, quern::testing::wait_for;
using quern::testing::TemporaryFolder, test::same_bits;

namespace {

constexpr RowTableOptions kSmall{.rows = 300, .width = 24, .states = 2};
constexpr RowTableOptions kRead{.read_only = true};

/// Every row of the weight and of the states holds `value`.
void write_all(RowTable& table, double value) {
  raw::fill_(table.weight(), value);
  for (const Tensor& s : table.state()) raw::fill_(s, value);
}
bool holds(const RowTable& table, double value) {
  bool same =
      same_bits(table.weight(), full(table.weight().shape(), value, table.weight().dtype()));
  for (const Tensor& s : table.state()) same &= same_bits(s, full(s.shape(), value, s.dtype()));
  return same;
}

std::string error_of(const std::string& path, const RowTableOptions& options = {}) {
  try {
    RowTable::open(path, options);
  } catch (const Error& error) {
    return error.what();
  }
  return "none";
}
bool has(const std::string& text, const std::string& part) {
  const bool found = text.find(part) != std::string::npos;
  if (!found) MESSAGE(text);
  return found;
}

/// No file may grow beyond this, as on a full disk.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    REQUIRE(::getrlimit(RLIMIT_FSIZE, &before_) == 0);
    rlimit limit = before_;
    limit.rlim_cur = bytes;
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
  }
  ~FullDisk() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int);
};

}  // namespace

TEST_CASE("row table: a new one is zeros and takes no room") {
  const TemporaryFolder folder;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    const std::string path = folder / std::string(to_string(dtype));
    const RowTable table = RowTable::open(path, {1'000'000, 64, dtype, 1});
    CHECK(table.weight().shape() == Shape{1'000'000, 64});
    CHECK(table.weight().dtype() == dtype);
    REQUIRE(table.state().size() == 1);
    CHECK(table.state()[0].dtype() == (dtype == DType::f64 ? DType::f64 : DType::f32));
    CHECK(table.generation() == 0);
    CHECK(table.dirty_bytes() == 0);
    const Tensor last = raw::slice(table.weight(), 0, 999'990, 1'000'000);
    CHECK(same_bits(raw::clone(last), zeros({10, 64}, dtype)));
    struct stat status {};
    REQUIRE(::stat(path.c_str(), &status) == 0);
    CHECK(status.st_size > 1'000'000 * 64 * itemsize(dtype));
    CHECK(status.st_blocks * 512 <= 65536);
  }
}

TEST_CASE("row table: a generation is what was flushed, and nothing that was not") {
  const TemporaryFolder folder;
  for (int64_t generation = 1; generation <= 3; ++generation) {
    RowTable table = RowTable::open(folder / "t", generation == 1 ? kSmall : RowTableOptions{});
    CHECK(table.generation() == generation - 1);
    CHECK(table.step() == 10 * (generation - 1));
    CHECK(holds(table, static_cast<double>(generation - 1)));
    write_all(table, static_cast<double>(generation));
    CHECK(table.dirty_bytes() >= 3 * 300 * 24 * 4);
    table.flush(10 * generation);
    CHECK(table.dirty_bytes() == 0);
    CHECK(table.generation() == generation);
    CHECK(holds(table, static_cast<double>(generation)));
    write_all(table, -1);  // never flushed
  }
  CHECK(folder.count() == 2);  // the table and its lock
}

TEST_CASE("row table: training on one, through flushes and reopening, has the bits of memory's") {
  const auto run = [](auto make, int states) {
    const TemporaryFolder folder;
    const RowTableOptions options{.rows = 500, .width = 40, .states = states};
    const Tensor start = randn({500, 40});
    nn::Embedding in_memory(raw::clone(start), {.sparse = true});
    const auto whole = make(in_memory.parameters());
    {
      RowTable table = RowTable::open(folder / "t", options);
      raw::copy_(table.weight(), start);
      table.flush();
    }
    for (int part = 0; part < 3; ++part) {
      RowTable table = RowTable::open(folder / "t", options);
      nn::Embedding words(table.weight(), {.sparse = true});
      const auto optimizer = make(words.parameters());
      if (states > 0) optimizer->use_state(words.weight, table.state(), table.step());
      for (int step = 0; step < 4; ++step) {
        const Tensor indices = randint(0, 500, {30}), dy = randn({30, 40});
        for (auto [embedding, by] :
             {std::pair(&in_memory, whole.get()), std::pair(&words, optimizer.get())}) {
          by->zero_grad();
          (*embedding)(indices).backward(dy);
          by->step();
        }
        if (step == 1) table.flush();
      }
      CHECK(same_bits(words.weight, in_memory.weight));
      const TensorDict state = whole->state_dict();
      for (const auto& [name, tensor] : optimizer->state_dict())
        CHECK(same_bits(tensor, state.at(name)));
      table.flush(optimizer->steps(words.weight));
    }
  };
  run([](Tensors p) { return std::make_unique<optim::Adam>(p); }, 2);
  run([](Tensors p) { return std::make_unique<optim::SGD>(p); }, 0);
  run(
      [](Tensors p) {
        return std::make_unique<optim::Adagrad>(
            p, optim::AdagradOptions{.initial_accumulator_value = 0.1});
      },
      1);
  run([](Tensors p) { return std::make_unique<optim::SGD>(p, optim::SGDOptions{.momentum = 0.9}); },
      1);
}

TEST_CASE("row table: a state that is loaded goes into the table") {
  const TemporaryFolder folder;
  RowTable table = RowTable::open(folder / "t", kSmall);
  nn::Embedding words(table.weight(), {.sparse = true});
  optim::Adam optimizer(words.parameters());
  optimizer.use_state(words.weight, table.state(), 0);
  const auto step = [&] {
    optimizer.zero_grad();
    words(arange(5)).backward(randn({5, 24}));
    optimizer.step();
  };
  const TensorDict none = optimizer.state_dict();
  step();
  const TensorDict first = optimizer.state_dict();
  step();
  optimizer.load_state_dict(first);
  CHECK(same_bits(table.state()[0], first.at("0.exp_avg")));
  CHECK(same_bits(table.state()[1], first.at("0.exp_avg_sq")));
  step();
  CHECK_FALSE(same_bits(table.state()[0], first.at("0.exp_avg")));
  CHECK(optimizer.steps(words.weight) == 2);
  optimizer.load_state_dict(none);
  CHECK(same_bits(table.state()[0], zeros({300, 24})));
  CHECK(optimizer.steps(words.weight) == 0);
  CHECK_THROWS_WITH(optimizer.use_state(words.weight, {table.state()[0]}, 0),
                    doctest::Contains("[adam] use_state: expected 2 tensors, got 1"));
  CHECK_THROWS_WITH(optimizer.use_state(words.weight, {zeros({3}), zeros({3})}, 0),
                    doctest::Contains("expected exp_avg as a dense f32 [300,24]"));
}

TEST_CASE("row table: readers keep the generation that they opened") {
  const TemporaryFolder folder;
  RowTable writer = RowTable::open(folder / "t", kSmall);
  write_all(writer, 1);
  writer.flush();
  {
    const RowTable old = RowTable::open(folder / "t", kRead);
    for (const double value : {2, 3}) {
      write_all(writer, value);
      writer.flush();
      CHECK(holds(old, 1));
      const RowTable next = RowTable::open(folder / "t", kRead);
      CHECK(holds(next, value));
      CHECK(next.generation() == writer.generation());
    }
    CHECK(folder.count() == 3);  // the redo waits for the readers
    // A writer that comes meanwhile goes on from the last generation, too.
    writer = RowTable(RowTable::open(folder / "other", kSmall));
    RowTable second = RowTable::open(folder / "t");
    CHECK(holds(second, 3));
    raw::fill_(raw::select(second.weight(), 0, 0), 4);
    second.flush();
    CHECK(holds(old, 1));
  }
  RowTable last = RowTable::open(folder / "t");
  CHECK(folder.count() == 4);  // two tables, two locks
  CHECK(last.generation() == 4);
  CHECK(last.weight().to_vector<double>()[0] == 4);
  CHECK(last.weight().to_vector<double>()[24] == 3);
  RowTable reader = RowTable::open(folder / "t", kRead);
  CHECK_THROWS_WITH(reader.flush(), doctest::Contains("opened to write"));
}

TEST_CASE("row table: one writer at a time, who is named") {
  const TemporaryFolder folder;
  Tensor weight;
  {
    const RowTable table = RowTable::open(folder / "t", kSmall);
    REQUIRE(::symlink((folder / "t").c_str(), (folder / "link").c_str()) == 0);
    char host[200] = "";
    ::gethostname(host, sizeof host - 1);
    const std::string holder = fmt::format("process {} on {}", ::getpid(), host);
    for (const char* name : {"t", "link"}) {
      CHECK(has(error_of(folder / name), "expected no other writer, got " + holder));
      CHECK(WEXITSTATUS(wait_for(start([&] { RowTable::open(folder / name); }))) == 1);
    }
    weight = table.weight();
  }
  CHECK(has(error_of(folder / "t"), "expected no other writer"));  // its tensor lives
  weight = {};
  CHECK(error_of(folder / "t") == "none");
}

TEST_CASE("row table: files that are no tables are refused, and options that are not the table's") {
  const TemporaryFolder folder;
  CHECK(has(error_of(folder / "t"), "expected a file, or rows and width to make one of"));
  CHECK(has(error_of(folder / "t", kRead), "No such file or directory"));
  CHECK(has(error_of(folder / "none/t", kSmall), "No such file or directory"));
  CHECK(has(error_of(folder / "t", {.rows = -1, .width = 3}), "rows and width"));
  CHECK(has(error_of(folder / "t", {.rows = int64_t{1} << 40, .width = int64_t{1} << 40}), "fit"));
  CHECK(has(error_of(folder / "t", {.rows = 1, .width = 1, .states = 3}), "states: expected 0..2"));
  CHECK(has(error_of(folder / "t", {.rows = 1, .width = 1, .dtype = DType::i64}), "dtype"));
  { RowTable::open(folder / "t", kSmall).flush(7); }
  CHECK(has(error_of(folder / "t", {.rows = 301, .width = 24, .states = 2}),
            "expected f32 [301, 24] with 2 states, got f32 [300, 24] with 2"));
  const std::string good = folder.read("t");
  const auto damaged = [&](const std::string& bytes, const std::string& message) {
    folder.write("d", bytes);
    CHECK(has(error_of(folder / "d", kRead), message));
    CHECK(has(error_of(folder / "d"), message));
    CHECK(folder.read("d") == bytes);
  };
  damaged("", "another or a damaged file");
  damaged(good.substr(0, 50), "another or a damaged file");
  damaged(good.substr(0, good.size() - 1), "bytes, got");
  damaged(good + "x", "bytes, got");
  damaged(std::string(good.size(), '\1'), "another or a damaged file");
  for (size_t byte = 0; byte < sizeof(nn::row_table::Header); ++byte) {
    std::string bytes = good;
    bytes[byte] = static_cast<char>(bytes[byte] ^ 4);
    damaged(bytes, "another or a damaged file");
  }
  // A header that is whole, and lies.
  using nn::row_table::Header;
  const auto lies = [&](const std::function<void(Header&)>& lie) {
    Header header;
    std::memcpy(&header, good.data(), sizeof header);
    lie(header);
    header.seal();
    std::string bytes = good;
    std::memcpy(bytes.data(), &header, sizeof header);
    folder.write("d", bytes);
    return error_of(folder / "d");
  };
  CHECK(has(lies([](Header& h) { h.rows = int64_t{1} << 50; }), "bytes, got"));
  CHECK(has(lies([](Header& h) { h.rows = INT64_MAX; }), "that fit"));
  CHECK(has(lies([](Header& h) { h.width = -24; }), "that fit"));
  CHECK(has(lies([](Header& h) { h.states = 100; }), "0..2 states"));
  CHECK(has(lies([](Header& h) { h.dtype[0] = 'i'; }),
            "expected f32, bf16, f16 or f64, got \"i32\""));
}

TEST_CASE("row table: a damaged or foreign redo is refused, and changes nothing") {
  const TemporaryFolder folder;
  const auto flushed_beside_a_reader = [&](const std::string& name) {
    RowTable writer = RowTable::open(folder / name, kSmall);
    const RowTable reader = RowTable::open(folder / name, kRead);
    raw::fill_(raw::select(writer.weight(), 0, 0), 1);
    writer.flush();
  };
  flushed_beside_a_reader("t"), flushed_beside_a_reader("other");
  const std::string table = folder.read("t"), redo = folder.read("t.redo");
  const auto refused = [&](const std::string& bytes) {
    folder.write("t.redo", bytes);
    for (const RowTableOptions& options : {RowTableOptions{}, kRead})
      CHECK(has(error_of(folder / "t", options), "expected the redo of the table beside it"));
    CHECK(folder.read("t") == table);
  };
  refused(folder.read("other.redo"));
  refused(""), refused(redo.substr(0, redo.size() - 8)), refused(redo + "12345678");
  for (size_t byte = 0; byte < redo.size(); byte += byte < 64 ? 1 : 509) {
    std::string bytes = redo;
    bytes[byte] = static_cast<char>(bytes[byte] ^ 64);
    refused(bytes);
  }
  folder.write("t.redo", redo);
  CHECK(RowTable::open(folder / "t").generation() == 1);
}

TEST_CASE("row table: a disk that is full loses neither the last generation nor the changes") {
  const TemporaryFolder folder;
  RowTable table = RowTable::open(folder / "t", kSmall);
  write_all(table, 1);
  table.flush();
  write_all(table, 2);
  {
    const FullDisk full(4096);
    CHECK_THROWS_WITH(table.flush(), doctest::Contains("File too large"));
    CHECK(table.generation() == 1);
    CHECK(holds(table, 2));
  }
  CHECK(holds(RowTable::open(folder / "t", kRead), 1));
  table.flush();
  CHECK(holds(RowTable::open(folder / "t", kRead), 2));
  // Room for a redo of a few pages, not for the end of the file.
  raw::fill_(raw::select(table.state()[1], 0, 299), 3);
  {
    const FullDisk full(3 * 65536);
    table.flush();
    CHECK(table.generation() == 3);
  }
  const auto last = [&](const RowTable& t) { return t.state()[1].to_vector<double>().back(); };
  CHECK(last(table) == 3);
  CHECK(last(RowTable::open(folder / "t", kRead)) == 3);
  CHECK(folder.count() == 3);
  table.flush();
  CHECK(folder.count() == 2);
}

TEST_CASE("row table: a folder that may not be written has readers") {
  if (::geteuid() != 0) {
    MESSAGE("skipped: only root becomes somebody else");
    return;
  }
  const TemporaryFolder folder;
  {
    RowTable table = RowTable::open(folder / "t", kSmall);
    write_all(table, 1);
    table.flush();
  }
  for (const auto& [name, mode] : {std::pair("", 0755), {"t", 0644}})
    REQUIRE(::chmod((folder / name).c_str(), static_cast<mode_t>(mode)) == 0);
  const pid_t stranger = start([&] {
    if (::setgroups(0, nullptr) != 0 || ::setgid(77) != 0 || ::setuid(77) != 0) ::_exit(2);
    if (!holds(RowTable::open(folder / "t", kRead), 1)) ::_exit(3);
    if (!has(error_of(folder / "t"), "Permission denied")) ::_exit(4);
  });
  CHECK(WEXITSTATUS(wait_for(stranger)) == 0);
}

TEST_CASE("row table: killed at any moment, the last flushed generation is whole") {
  const TemporaryFolder folder;
  // Large enough for kills to find pages on their way.
  { RowTable::open(folder / "t", {.rows = 4'000, .width = 24, .states = 2}); }
  // What the writer has seen flushed.
  auto* const flushed = static_cast<std::atomic<int64_t>*>(
      ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  int in_flush = 0;
  for (int kill = 0; kill < 40; ++kill) {
    CAPTURE(kill);
    const pid_t writer = start([&] {
      RowTable table = RowTable::open(folder / "t");
      for (int64_t g = table.generation() + 1;; ++g) {
        write_all(table, static_cast<double>(g));
        flushed[1] = g;  // from here on it may be there
        table.flush(g);
        *flushed = g;
      }
    });
    // At moments from one end of a flush to the other.
    const int64_t before = *flushed;
    const auto lives = [&] { return ::waitpid(writer, nullptr, WNOHANG) == 0; };
    while (lives() && (*flushed == before || flushed[1] == *flushed)) std::this_thread::yield();
    REQUIRE(lives());
    std::this_thread::sleep_for(std::chrono::microseconds(120 * kill));
    ::kill(writer, SIGKILL);
    CHECK(WTERMSIG(wait_for(writer)) == SIGKILL);
    in_flush += flushed[1] != flushed[0];
    for (const RowTableOptions& options : {kRead, RowTableOptions{}}) {
      const RowTable table = RowTable::open(folder / "t", options);
      CHECK(table.generation() >= flushed[0]);
      CHECK(table.generation() <= flushed[1]);
      CHECK(table.step() == table.generation());
      CHECK(holds(table, static_cast<double>(table.generation())));
    }
  }
  CHECK(*flushed > 0);
  CHECK(in_flush > 0);
  ::munmap(flushed, 4096);
}

TEST_CASE("row table: fetches rows that are in it, and no others") {
  const TemporaryFolder folder;
  RowTable table = RowTable::open(folder / "t", {.rows = 300, .width = 24, .states = 1});
  write_all(table, 1);
  table.fetch(from_vector<int64_t>({0, 299, 7, 7}, {2, 2}));
  table.fetch(zeros({0}, DType::i64));
  CHECK(holds(table, 1));  // what was written is not read over
  table.flush();
  table.fetch(arange(300));
  CHECK(holds(table, 1));
  CHECK_THROWS_WITH_AS(table.fetch(from_vector<int64_t>({5, 300})),
                       "[RowTable] indices: expected 0..299, got 300 as element 1", Error);
  CHECK_THROWS_WITH_AS(table.fetch(from_vector<int64_t>({-1})),
                       "[RowTable] indices: expected 0..299, got -1 as element 0", Error);
  CHECK_THROWS_WITH_AS(table.fetch(zeros({3})),
                       "[RowTable] indices: expected an i64 tensor, got f32 [3]", Error);
  CHECK_THROWS_AS(table.fetch({}), Error);
}
