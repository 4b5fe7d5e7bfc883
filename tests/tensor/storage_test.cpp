#include "quern/tensor/storage.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "quern/tensor/check.h"

using namespace quern;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized =
    true;  // their allocators end the process where the system's returns null
#elif defined(__has_feature)
constexpr bool kSanitized = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
constexpr bool kSanitized = false;
#endif

namespace {

int64_t in_use_for(int64_t bytes) {
  const int64_t before = memory_stats().in_use;
  const Storage storage(bytes);
  return memory_stats().in_use - before;
}

uint64_t address(const Storage& storage) { return reinterpret_cast<uint64_t>(storage.data()); }

}  // namespace

TEST_CASE("storage: aligned, writable to its last byte") {
  for (int64_t bytes : {1, 63, 64, 65, 1000, 4097, 1 << 20, 3 << 20}) {
    const Storage storage(bytes);
    CHECK(storage.bytes() == bytes);
    CHECK(address(storage) % 64 == 0);
    if (bytes >= 1 << 16) CHECK(address(storage) % 4096 == 0);
    std::memset(storage.data(), 0x5a, static_cast<size_t>(bytes));
  }
}

TEST_CASE("storage: no bytes are fine, fewer are not") {
  const Storage storage(0);
  CHECK(storage.bytes() == 0);
  CHECK(storage.data() != nullptr);
  CHECK_THROWS_WITH_AS(Storage(-1), "[storage] bytes: expected at least 0, got -1", Error);
}

TEST_CASE("storage: four size classes a power of two") {
  CHECK(in_use_for(0) == 64);
  CHECK(in_use_for(64) == 64);
  CHECK(in_use_for(65) == 128);
  CHECK(in_use_for(449) == 512);
  CHECK(in_use_for(513) == 640);
  CHECK(in_use_for(1024) == 1024);
  CHECK(in_use_for(1025) == 1280);
  // Classes rise with the request and waste less than a quarter (beyond the unit of 64).
  int64_t last = 0;
  for (int64_t bytes = 1; bytes < 20'000; ++bytes) {
    const int64_t held = in_use_for(bytes);
    REQUIRE(held >= bytes);
    REQUIRE(held >= last);
    REQUIRE(held - bytes <= std::max<int64_t>(63, bytes / 4));
    last = held;
  }
}

TEST_CASE("storage: whole pages from 64 KiB on") {
  CHECK(in_use_for((1 << 16) - 1) == 1 << 16);
  CHECK(in_use_for(1 << 16) == 1 << 16);
  CHECK(in_use_for((1 << 16) + 1) == (1 << 16) + 4096);
  CHECK(in_use_for((1 << 20) + 4096) == (1 << 20) + 4096);
}

TEST_CASE("storage: freed large blocks join, and are cut to any size") {
  constexpr int64_t kMiB = 1 << 20;
  empty_cache();
  const MemoryStats start = memory_stats();
  { const Storage all(8 * kMiB); }  // of one region, wherever the system puts it
  { const Storage a(3 * kMiB), b(2 * kMiB), c(3 * kMiB); }
  const MemoryStats warm = memory_stats();
  CHECK(warm.system_bytes == start.system_bytes + 8 * kMiB);
  CHECK(warm.cached == 8 * kMiB);
  {
    const Storage all(8 * kMiB);
    CHECK(memory_stats().cached == 0);
  }
  {
    std::vector<std::unique_ptr<Storage>> pieces;
    for (int i = 0; i < 64; ++i) pieces.push_back(std::make_unique<Storage>(kMiB / 8));
    std::set<uint64_t> addresses;
    for (const auto& piece : pieces) addresses.insert(address(*piece));
    CHECK(addresses.size() == 64);
    CHECK(*addresses.rbegin() - *addresses.begin() == 63 * kMiB / 8);
    for (size_t i = 0; i < 64; i += 2) pieces[i].reset();  // holes, then all: any order joins
  }
  { const Storage all(8 * kMiB); }
  CHECK(memory_stats().system_bytes == warm.system_bytes);
  {
    const Storage most(7 * kMiB);  // of what is left there is not enough
    const Storage more(kMiB + 4096);
    CHECK(memory_stats().system_bytes <= warm.system_bytes + 2 * kMiB);
  }
  empty_cache();
  CHECK(memory_stats().cached == 0);
}

TEST_CASE("storage: small blocks that stay leave no gaps among large ones") {
  constexpr int64_t kMiB = 1 << 20;
  empty_cache();
  { const Storage all(40 * kMiB); }
  const int64_t warm = memory_stats().system_bytes;
  std::vector<std::unique_ptr<Storage>> large, small;
  for (int i = 0; i < 4; ++i) {
    large.push_back(std::make_unique<Storage>(8 * kMiB));
    small.push_back(std::make_unique<Storage>(kMiB / 2));
  }
  large.clear();
  const Storage all_but_small(38 * kMiB);
  CHECK(memory_stats().system_bytes == warm);
}

TEST_CASE("storage: large blocks of random sizes and lives keep their bytes") {
  std::minstd_rand random(1);
  std::vector<std::pair<std::unique_ptr<Storage>, int>> live(24);
  const auto intact = [](const Storage& s, int value) {
    return std::all_of(s.data(), s.data() + s.bytes(),
                       [&](std::byte b) { return b == static_cast<std::byte>(value); });
  };
  for (int i = 0; i < 600; ++i) {
    auto& [storage, value] = live[random() % live.size()];
    if (storage != nullptr) REQUIRE(intact(*storage, value));
    storage = random() % 3 == 0 ? nullptr : std::make_unique<Storage>(random() % 400'000);
    value = i % 251;
    if (storage != nullptr)
      std::memset(storage->data(), value, static_cast<size_t>(storage->bytes()));
    if (i % 100 == 0) empty_cache();
  }
}

TEST_CASE("storage: the second allocation takes nothing from the system") {
  empty_cache();
  CHECK(memory_stats().cached == 0);
  const MemoryStats start = memory_stats();
  { const Storage first(50'000), second(50'000); }
  const MemoryStats warm = memory_stats();
  CHECK(warm.system_allocations == start.system_allocations + 2);
  CHECK(warm.system_bytes == start.system_bytes + 2 * 57'344);
  CHECK(warm.cached == 2 * 57'344);
  CHECK(warm.in_use == start.in_use);
  {
    const Storage first(50'001), second(49'900);  // of the same class
    CHECK(memory_stats().cached == 0);
    CHECK(memory_stats().in_use == start.in_use + 2 * 57'344);
  }
  CHECK(memory_stats().system_allocations == warm.system_allocations);
  CHECK(memory_stats().cached == warm.cached);
  empty_cache();
  CHECK(memory_stats().cached == 0);
  CHECK(memory_stats().system_allocations == warm.system_allocations);
}

TEST_CASE("storage: the peak is the most in use at a time") {
  const int64_t base = memory_stats().in_use;
  reset_peak_memory_stats();
  CHECK(memory_stats().peak == base);
  {
    const Storage a(1 << 16);
    const Storage b(1 << 16);
  }
  const Storage c(1 << 16);
  CHECK(memory_stats().peak == base + 2 * (1 << 16));
  CHECK(memory_stats().in_use == base + (1 << 16));
  reset_peak_memory_stats();
  CHECK(memory_stats().peak == base + (1 << 16));
}

TEST_CASE("storage: ids are never used again, versions count changes") {
  uint64_t id = 0;
  {
    const Storage storage(64);
    id = storage.id();
  }
  Storage storage(64);
  CHECK(storage.id() > id);
  CHECK(storage.version() == 0);
  storage.bump_version();
  storage.bump_version();
  CHECK(storage.version() == 2);
}

TEST_CASE("storage: more than the system has is an error that gives the cache back first") {
  if (kSanitized) {
    MESSAGE("skipped: a sanitizer's allocator");
    return;
  }
  { const Storage cached(1 << 20); }
  const MemoryStats before = memory_stats();
  CHECK(before.cached >= 1 << 20);
  const int64_t bytes = int64_t{1} << 60;
  CHECK_THROWS_WITH_AS(
      Storage{bytes},
      "[storage] memory: expected 1152921504606846976 bytes, the system has no more", Error);
  CHECK_THROWS_AS(Storage{std::numeric_limits<int64_t>::max()}, Error);
  CHECK(memory_stats().cached == 0);
  CHECK(memory_stats().in_use == before.in_use);
  CHECK(memory_stats().system_bytes == before.system_bytes);
}

TEST_CASE("storage: threads share the free lists") {
  const int64_t before = memory_stats().in_use;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 2000; ++i) {
        const Storage a(64 + i % 700), b(64 + i % 300);
        std::memset(a.data(), t, static_cast<size_t>(a.bytes()));
        std::memset(b.data(), t + 100, static_cast<size_t>(b.bytes()));
        if (a.data()[a.bytes() - 1] != static_cast<std::byte>(t)) FAIL("a block was given twice");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(memory_stats().in_use == before);
}

TEST_CASE("workspace: scratch memory comes back at the end of its scope") {
  const int64_t before = memory_stats().in_use;
  for (const int64_t items : {1000, 1 << 18, (1 << 18) + 1}) {
    const Workspace workspace(items * static_cast<int64_t>(sizeof(float)));
    workspace.as<float>()[items - 1] = 1.0f;
    CHECK(reinterpret_cast<uint64_t>(workspace.as<char>()) % 64 == 0);
    CHECK((memory_stats().in_use > before) == (items > 1 << 18));
  }
  CHECK(memory_stats().in_use == before);
  CHECK(Workspace(0).as<char>() == nullptr);
  CHECK_THROWS_WITH_AS(Workspace(-1), "[storage] bytes: expected at least 0, got -1", Error);
}

TEST_CASE("workspace: a thread gets what it had before, another one does not") {
  for (const int64_t bytes : {100, 50'000, 70'000, 1 << 20}) {
    CAPTURE(bytes);
    const auto address_of_one = [&] {
      const Workspace workspace(bytes);
      std::memset(workspace.as<char>(), 1, static_cast<size_t>(bytes));
      return workspace.as<char>();
    };
    char* const mine = address_of_one();
    CHECK(address_of_one() == mine);
    char* others = nullptr;
    std::thread([&] { others = address_of_one(); }).join();
    CHECK(others != mine);
    CHECK(address_of_one() == mine);
  }
}

TEST_CASE("workspace: what a thread had is there for others once it has ended") {
  const auto in_a_thread = [](int64_t bytes) {
    std::set<char*> addresses;
    std::thread([&] {
      const Workspace first(bytes), second(bytes);
      addresses = {first.as<char>(), second.as<char>()};
    }).join();
    return addresses;
  };
  for (const int64_t bytes : {300, 900'000}) {
    const std::set<char*> first = in_a_thread(bytes);
    CHECK(first.size() == 2);
    CHECK(in_a_thread(bytes) == first);
  }
}

TEST_CASE("cached vectors: made by one thread, freed by another, none is given twice") {
  // More than a thread keeps of a size, or in all.
  using Vector = CachedVector<int64_t>;
  std::vector<std::vector<Vector>> made(3);
  for (int round = 0; round < 4; ++round) {
    std::vector<std::thread> threads;
    std::vector<int> wrong(made.size());
    for (size_t t = 0; t < made.size(); ++t) {
      threads.emplace_back([&, t] {
        for (const Vector& v : made[t])
          for (const int64_t value : v)
            if (value != v[0]) ++wrong[t];
        made[t].clear();
        for (size_t i = 0; i < 1500; ++i)
          made[t].emplace_back(1 + i * i * 17 % (i % 50 == 0 ? 60'000 : 900),
                               static_cast<int64_t>(t * 10'000 + i));
      });
    }
    for (int i = 0; i < 20; ++i) empty_cache();  // of all threads, while they take and give
    for (std::thread& thread : threads) thread.join();
    CHECK(std::count(wrong.begin(), wrong.end(), 0) == std::ssize(wrong));
    std::rotate(made.begin(), made.begin() + 1, made.end());
  }
}
