#include "quern/tensor/parallel.h"

#include <doctest/doctest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <chrono>
#include <cmath>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "emulated_cpu.h"
#include "quern/tensor/check.h"
#include "run_self.h"
#include "threads.h"

using namespace quern;
using test::denormal_product, test::Threads;

TEST_CASE("parallel_for: each cell once, for any number of threads and cells") {
  for (int threads : {1, 2, 3, 7}) {
    const Threads guard(threads);
    for (int64_t cells : {0, 1, 2, 3, 6, 7, 8, 1000}) {
      std::vector<std::atomic<int>> visits(static_cast<size_t>(cells));
      parallel_for(cells, [&](int64_t cell) {
        ++visits[static_cast<size_t>(cell)];
        if (thread_index() < 0 || thread_index() >= threads) FAIL("thread_index out of range");
      });
      for (const auto& count : visits) CHECK(count == 1);
    }
  }
}

TEST_CASE("parallel_for: each piece of a cell once, in order, no cell with another") {
  for (int threads : {1, 2, 3, 7}) {
    const Threads guard(threads);
    for (int64_t cells : {0, 1, 2, 7, 100}) {
      for (int64_t pieces : {1, 2, 3, 8}) {
        std::vector<std::atomic<int>> visits(static_cast<size_t>(cells * pieces));
        parallel_for(cells, pieces, [&](int64_t cell, int64_t begin, int64_t end) {
          if (begin < 0 || begin >= end || end > pieces) FAIL("not pieces of one cell");
          for (int64_t i = begin; i < end; ++i) ++visits[static_cast<size_t>(cell * pieces + i)];
        });
        for (const auto& count : visits) CHECK(count == 1);
      }
    }
  }
}

TEST_CASE("parallel_for: a thread takes whole cells, of its last one half of what is left") {
  const Threads guard(2);
  std::mutex mutex;
  std::vector<std::pair<int64_t, int64_t>> taken[4];  // by cell
  parallel_for(4, 8, [&](int64_t cell, int64_t begin, int64_t end) {
    const std::lock_guard lock(mutex);
    taken[cell].push_back({begin, end});
  });
  for (auto& pieces : taken) std::sort(pieces.begin(), pieces.end());
  using Pieces = std::vector<std::pair<int64_t, int64_t>>;
  const Pieces whole{{0, 8}}, halves{{0, 4}, {4, 6}, {6, 7}, {7, 8}};
  for (int cell : {0, 2}) CHECK(taken[cell] == whole);
  for (int cell : {1, 3}) CHECK(taken[cell] == halves);
}

TEST_CASE("parallel_for: threads have indices of their own") {
  const Threads guard(3);
  std::vector<std::pair<int, std::thread::id>> runs(300);
  parallel_for(300, [&](int64_t cell) {
    runs[static_cast<size_t>(cell)] = {thread_index(), std::this_thread::get_id()};
  });
  for (const auto& a : runs)
    for (const auto& b : runs)
      if ((a.first == b.first) != (a.second == b.second)) FAIL("an index of two threads");
  CHECK(thread_index() == 0);
}

TEST_CASE("parallel_for: fewer cells than threads cost no thread") {
  const Threads guard(4);
  static std::atomic<int> made = 0;
  const auto patience = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  for (int i = 0; i < 10; ++i)
    for (int cells : {4, 2}) {
      std::atomic<int> begun = 0;
      parallel_for(cells, [&](int64_t) {
        static thread_local const int number = ++made;
        static_cast<void>(number);  // made where a thread meets it first
        ++begun;
        while (begun < cells && std::chrono::steady_clock::now() < patience)
          std::this_thread::yield();
      });
      CHECK(begun == cells);
    }
  CHECK(made.load() == 4);
}

TEST_CASE("parallel_for: threads help one that is held up") {
  const Threads guard(2);
  std::atomic<int> others = 0;
  const auto patience = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  parallel_for(100, [&](int64_t cell) {
    if (cell != 0) ++others;
    while (cell == 0 && others < 99 && std::chrono::steady_clock::now() < patience)
      std::this_thread::yield();
    if (cell == 0) CHECK(others == 99);
  });
}

TEST_CASE("parallel_chunks: covers the range, in chunks of the grain") {
  for (int64_t n : {0, 1, 9, 10, 11, 95}) {
    std::vector<std::atomic<int>> visits(static_cast<size_t>(n));
    parallel_chunks(n, 10, [&](int64_t begin, int64_t end) {
      if (begin % 10 != 0 || end - begin > 10 || begin >= end) FAIL("a wrong chunk");
      for (int64_t i = begin; i < end; ++i) ++visits[static_cast<size_t>(i)];
    });
    for (const auto& count : visits) CHECK(count == 1);
  }
}

TEST_CASE("parallel_for: the exception of the lowest cell comes back") {
  for (int threads : {1, 2, 3}) {
    const Threads guard(threads);
    for (int64_t first : {0, 40, 99}) {
      CAPTURE(first);
      CHECK_THROWS_WITH_AS(parallel_for(100,
                                        [&](int64_t cell) {
                                          if (cell >= first)
                                            throw std::runtime_error(std::to_string(cell));
                                        }),
                           std::to_string(first).c_str(), std::runtime_error);
    }
    std::atomic<int> count = 0;  // and the next one runs as if nothing had been
    parallel_for(10, [&](int64_t) { ++count; });
    CHECK(count == 10);
    CHECK(thread_index() == 0);
  }
}

TEST_CASE("parallel_for: nested, it runs in the calling thread") {
  const Threads guard(3);
  std::atomic<int> count = 0;
  parallel_for(6, [&](int64_t) {
    const int outer = thread_index();
    parallel_for(5, [&](int64_t) {
      ++count;
      if (thread_index() != outer) FAIL("a nested cell left its thread");
    });
    if (thread_index() != outer) FAIL("a nested parallel_for changed the index");
  });
  CHECK(count == 30);
}

#if defined(__SSE__) || defined(__aarch64__)
TEST_CASE("parallel_for: denormals are zero in every cell, and only there") {
  for (int threads : {1, 3}) {
    const Threads guard(threads);
    for (int64_t cells : {1, 9}) {
      std::atomic<int> kept = 0;
      parallel_for(cells, [&](int64_t) {
        kept += denormal_product() != 0;
        parallel_for(2, [&](int64_t) { kept += denormal_product() != 0; });
        kept += denormal_product() != 0;
      });
      CHECK(kept == 0);
      CHECK(denormal_product() != 0);
    }
    CHECK_THROWS(parallel_for(3, [](int64_t) { throw 1; }));
    CHECK(denormal_product() != 0);
  }
}
#endif

#ifdef __x86_64__
TEST_CASE("parallel_for: cells round to nearest and trap nothing, whatever the caller has set") {
  for (int threads : {1, 3}) {
    const Threads guard(threads);
    std::fenv_t before;
    std::fegetenv(&before);
    std::fesetround(FE_UPWARD);
    feenableexcept(FE_INVALID | FE_DIVBYZERO);
    std::atomic<int> wrong = 0;
    parallel_for(9, [&](int64_t) {
      volatile float zero = 0, one = 1, small = 0x1p-30f;
      const float undefined = zero / zero, infinite = one / zero;
      wrong += one + small != 1 || !std::isnan(undefined) || !std::isinf(infinite);
    });
    const bool kept =
        std::fegetround() == FE_UPWARD && fegetexcept() == (FE_INVALID | FE_DIVBYZERO);
    std::fesetenv(&before);
    CHECK(wrong == 0);
    CHECK(kept);
  }
}
#endif

TEST_CASE("parallel_for: a child of fork has threads of its own" *
          doctest::skip(test::kEmulatedCpu)) {
  const Threads guard(3);
  const auto add_up = [] {
    std::atomic<int64_t> sum = 0;
    parallel_for(100, [&](int64_t cell) { sum += cell; });
    return sum.load();
  };
  CHECK(add_up() == 4950);  // now there is a pool of threads
  for (int generation = 0; generation < 2; ++generation) {
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      alarm(600);  // not for ever, should it hang
      _exit(add_up() == 4950 && add_up() == 4950 ? 0 : 1);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(status == 0);
    CHECK(add_up() == 4950);
  }
}

TEST_CASE("set_num_threads: at least one") {
  CHECK_THROWS_WITH_AS(set_num_threads(0), "[set_num_threads] threads: expected at least 1, got 0",
                       Error);
  CHECK_THROWS_AS(set_num_threads(-1), Error);
  CHECK(num_threads() >= 1);
}

TEST_CASE("child: number of threads" * doctest::skip()) {
  fmt::print("threads: {}\n", num_threads());
}

TEST_CASE("num_threads: OMP_NUM_THREADS") {
  CHECK(test::contains(test::run_self("OMP_NUM_THREADS=3", "child: number of threads"),
                       "threads: 3\n"));
}
