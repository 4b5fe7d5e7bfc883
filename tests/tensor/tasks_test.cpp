#include "quern/tensor/tasks.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "threads.h"

using namespace quern;
using test::denormal_product, test::Threads;

TEST_CASE("with_tasks: body and tasks once each, and each cell of theirs") {
  for (int threads : {1, 2, 3, 7}) {
    const Threads guard(threads);
    for (size_t tasks : {0, 1, 2, 9}) {
      CAPTURE(threads);
      CAPTURE(tasks);
      std::vector<std::atomic<int>> runs(tasks + 1), cells((tasks + 1) * 20);
      const auto run = [&](size_t i) {
        ++runs[i];
        for (size_t from : {0, 10})
          parallel_for(10,
                       [&](int64_t cell) { ++cells[20 * i + from + static_cast<size_t>(cell)]; });
      };
      with_tasks([&](Tasks& beside) {
        for (size_t i = 0; i < tasks; ++i) beside.run([&run, i] { run(i); });
        run(tasks);
      });
      for (const auto& count : runs) CHECK(count == 1);
      for (const auto& count : cells) CHECK(count == 1);
      CHECK(thread_index() == 0);
    }
  }
}

TEST_CASE("with_tasks: threads have indices of their own, in tasks and in cells") {
  const Threads guard(3);
  std::mutex mutex;
  std::map<std::thread::id, int> indices;
  const auto note = [&] {
    const std::lock_guard lock(mutex);
    const auto [at, added] = indices.insert({std::this_thread::get_id(), thread_index()});
    if (at->second != thread_index()) FAIL("a thread of two indices");
  };
  with_tasks([&](Tasks& beside) {
    const auto run = [&] {
      note();
      parallel_for(100, [&](int64_t) { note(); });
      note();
    };
    for (int i = 0; i < 5; ++i) beside.run(run);
    run();
  });
  std::vector<int> seen;
  for (const auto& [thread, index] : indices) seen.push_back(index);
  std::sort(seen.begin(), seen.end());
  CHECK(std::adjacent_find(seen.begin(), seen.end()) == seen.end());
  CHECK(seen.front() == 0);
  CHECK(seen.back() <= 2);
}

TEST_CASE("with_tasks: a thread without a task takes cells of the others'") {
  const Threads guard(2);
  const auto patience = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  const auto held_up = [&] {
    std::atomic<int> others = 0;
    parallel_for(100, [&](int64_t cell) {
      if (cell != 0) ++others;
      while (cell == 0 && others < 99 && std::chrono::steady_clock::now() < patience)
        std::this_thread::yield();
      if (cell == 0) CHECK(others == 99);
    });
  };
  with_tasks([&](Tasks&) { held_up(); });
  with_tasks([&](Tasks& beside) { beside.run(held_up); });
}

TEST_CASE("with_tasks: the body does not wait for a task") {
  const Threads guard(2);
  std::atomic<bool> through = false;
  const auto patience = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  with_tasks([&](Tasks& beside) {
    beside.run([&] {
      while (!through && std::chrono::steady_clock::now() < patience) std::this_thread::yield();
      CHECK(through);
    });
    parallel_for(3, [](int64_t) {});
    through = true;
  });
}

TEST_CASE("with_tasks: on one thread, and inside parallel_for, a task runs when it is given") {
  std::vector<int> order;
  const auto body = [&](Tasks& beside) {
    order.push_back(1);
    beside.run([&] { order.push_back(2); });
    order.push_back(3);
  };
  {
    const Threads guard(1);
    with_tasks(body);
    CHECK(order == std::vector{1, 2, 3});
  }
  const Threads guard(3);
  order.clear();
  parallel_for(2, [&](int64_t cell) {
    if (cell == 0) with_tasks(body);
  });
  CHECK(order == std::vector{1, 2, 3});
}

TEST_CASE("with_tasks: an exception of the body, of a task, of a cell comes back") {
  for (int threads : {1, 2, 3}) {
    const Threads guard(threads);
    CAPTURE(threads);
    const auto fail = [](const char* what) { throw std::runtime_error(what); };
    const auto fail_in_cell = [&] {
      parallel_for(9, [&](int64_t cell) { cell < 5 ? void() : fail("cell"); });
    };
    CHECK_THROWS_WITH(with_tasks([&](Tasks&) { fail("body"); }), "body");
    CHECK_THROWS_WITH(with_tasks([&](Tasks& beside) { beside.run([&] { fail("task"); }); }),
                      "task");
    CHECK_THROWS_WITH(with_tasks([&](Tasks& beside) { beside.run(fail_in_cell); }), "cell");
    CHECK_THROWS_WITH(with_tasks([&](Tasks&) { fail_in_cell(); }), "cell");
    std::atomic<int> count = 0;  // and the next one runs as if nothing had been
    with_tasks([&](Tasks& beside) {
      beside.run([&] { ++count; });
      parallel_for(10, [&](int64_t) { ++count; });
    });
    CHECK(count == 11);
    CHECK(thread_index() == 0);
  }
}

TEST_CASE("with_tasks: tasks begin in their order, also those that tasks give") {
  for (int threads : {1, 2}) {
    const Threads guard(threads);
    std::vector<int> order;  // of one thread: the other is in the body until they are through
    std::atomic<int> left = 6;
    std::atomic<bool> all_given = threads == 1;  // there a task runs when it is given
    with_tasks([&](Tasks& beside) {
      for (int i = 0; i < 3; ++i)
        beside.run([&, i] {
          while (!all_given) std::this_thread::yield();
          order.push_back(i);
          beside.run([&, i] { order.push_back(10 + i), --left; });
          --left;
        });
      all_given = true;
      while (left > 0) std::this_thread::yield();
    });
    if (threads == 1) CHECK(order == std::vector{0, 10, 1, 11, 2, 12});
    else CHECK(order == std::vector{0, 1, 2, 10, 11, 12});
  }
}

TEST_CASE(
    "with_tasks: the body's exception goes before a task's, and tasks not begun are dropped") {
  const Threads guard(2);
  const auto patience = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  for (bool task_fails : {false, true}) {
    CAPTURE(task_fails);
    const auto held = std::make_shared<int>();  // by the tasks that wait
    std::atomic<bool> begun = false;
    std::atomic<bool> all_given = false;
    std::atomic<bool> dropped = false;
    std::atomic<int> later = 0;
    const auto body = [&](Tasks& beside) {
      beside.run([&] {
        begun = true;
        while ((!all_given || held.use_count() > 1) && std::chrono::steady_clock::now() < patience)
          std::this_thread::yield();
        dropped = held.use_count() == 1;
        if (task_fails) throw std::runtime_error("task");
      });
      for (int i = 0; i < 5; ++i) beside.run([&later, held] { ++later; });
      all_given = true;
      while (!begun) std::this_thread::yield();
      throw std::runtime_error("body");
    };
    CHECK_THROWS_WITH_AS(with_tasks(body), "body", std::runtime_error);
    CHECK(later == 0);
    CHECK(dropped);
  }
  // Of two tasks that fail, the first.
  std::atomic<int> begun = 0;
  const Threads three(3);
  const auto fail = [&](const char* what) {
    ++begun;
    while (begun < 2) std::this_thread::yield();
    throw std::runtime_error(what);
  };
  const auto two = [&](Tasks& beside) {
    beside.run([&] { fail("first"); });
    beside.run([&] { fail("second"); });
  };
  CHECK_THROWS_WITH_AS(with_tasks(two), "first", std::runtime_error);
}

TEST_CASE("with_tasks: inside a task its tasks run at once, its cells on all threads") {
  const Threads guard(2);
  std::atomic<int> runs = 0, cells = 0;
  with_tasks([&](Tasks& beside) {
    beside.run([&] {
      with_tasks([&](Tasks& inner) {
        inner.run([&] { ++runs; });
        CHECK(runs == 1);
        parallel_for(10, [&](int64_t) { ++cells; });
      });
    });
  });
  CHECK(runs == 1);
  CHECK(cells == 10);
}

#if defined(__SSE__) || defined(__aarch64__)
TEST_CASE("with_tasks: denormals are zero in every cell, and only there") {
  for (int threads : {1, 3}) {
    const Threads guard(threads);
    std::atomic<int> flushed = 0, kept = 0;
    const auto run = [&] {
      parallel_for(9, [&](int64_t) { ++(denormal_product() == 0 ? flushed : kept); });
      CHECK(denormal_product() != 0);
    };
    with_tasks([&](Tasks& beside) {
      beside.run(run);
      run();
    });
    CHECK(flushed == 18);
    CHECK(kept == 0);
    CHECK(denormal_product() != 0);
  }
}
#endif
