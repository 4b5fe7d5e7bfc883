// Where storages, workspaces and objects have their memory from: free lists of small blocks and a
// heap of pages, behind a lock. Private to storage.cpp and own_blocks.cpp.
#pragma once
#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <mutex>
#include <new>

#include "quern/tensor/asan.h"
#include "quern/tensor/check.h"
#include "quern/tensor/fork.h"
#include "quern/tensor/page_heap.h"
#include "quern/tensor/storage.h"

namespace quern::detail {

/// Small blocks come in few sizes so that a freed one soon fits again: four a power of two (waste
/// at most a quarter), in units of 64 bytes. 0 bytes take the smallest, so that a data pointer is
/// never null.
struct SizeClass {
  int index;     // 4·doubling + quarters - 1
  size_t bytes;  // quarters · 2^doubling units; quarters are 5..8 beyond the first eight classes

  constexpr explicit SizeClass(int64_t requested) {
    const size_t units = std::max<size_t>((static_cast<size_t>(requested) + kUnit - 1) / kUnit, 1);
    const int doubling = std::max(static_cast<int>(std::bit_width(units - 1)), 3) - 3;
    const size_t quarters = (units + (size_t{1} << doubling) - 1) >> doubling;
    index = 4 * doubling + static_cast<int>(quarters) - 1;
    bytes = (quarters << doubling) * kUnit;
  }

  static constexpr size_t kUnit = 64;
  static constexpr int kCount = 4 * 11 + 8;  // up to 1 MiB
};

static_assert(SizeClass(int64_t{1} << 20).index == SizeClass::kCount - 1);

inline constexpr std::align_val_t kAlignment{64};  // a cache line, and the widest vector
/// From here on, rounding to pages wastes little.
inline constexpr int64_t kLarge = int64_t{64} << 10;

/// What a request takes: a size class, or whole pages of the heap.
struct Size {
  int index;  // of the class; -1: pages
  size_t bytes;

  explicit Size(int64_t requested) : index(-1) {
    if (requested < kLarge) {
      const SizeClass size(requested);
      index = size.index, bytes = size.bytes;
    } else {
      bytes = (static_cast<size_t>(requested) + PageHeap::kPage - 1) / PageHeap::kPage *
              PageHeap::kPage;
    }
  }
};

/// Free blocks of one size, linked through their first bytes: to give one back takes no memory, and
/// so cannot fail in a destructor.
class FreeList {
 public:
  void push(std::byte* block) {
    ASAN_UNPOISON_MEMORY_REGION(block, sizeof(Link));  // or the leak checker would not follow it
    last_ = ::new (block) Link{last_};
  }
  /// The last one freed, the likeliest to be in a cache; null if there is none.
  std::byte* pop() {
    Link* const block = last_;
    if (block == nullptr) return nullptr;
    last_ = block->next;
    return reinterpret_cast<std::byte*>(block);
  }

 private:
  struct Link {
    Link* next;
  };
  Link* last_ = nullptr;
};

/// To tools that look for faults: of a block so many bytes may be touched, the rest not.
inline void mark_used(std::byte* block, [[maybe_unused]] size_t bytes,
                      [[maybe_unused]] size_t requested) {
  ASAN_POISON_MEMORY_REGION(block, bytes);
  ASAN_UNPOISON_MEMORY_REGION(block, requested);
}

/// Memory from free lists, else from the system. Any thread may call it.
class Allocator {
 public:
  Allocator() { hold_across_fork(mutex_); }

  std::byte* allocate(int64_t requested) {
    check(requested >= 0, "storage", "bytes: expected at least 0, got {}", requested);
    const Size size(requested);
    std::byte* block = take_locked(size);
    if (block == nullptr) {
      quern::empty_cache();  // of the other allocator, too
      block = take_locked(size);
    }
    check(block != nullptr, "storage", "memory: expected {} bytes, the system has no more",
          requested);
    mark_used(block, size.bytes, static_cast<size_t>(requested));
    return block;
  }

  void release(std::byte* block, int64_t requested) {
    const Size size(requested);
    ASAN_POISON_MEMORY_REGION(block, size.bytes);
    const std::lock_guard lock(mutex_);
    if (size.index < 0) pages_.give(block, size.bytes);
    else free_[static_cast<size_t>(size.index)].push(block);
    add_in_use(-static_cast<int64_t>(size.bytes));
    stats_.cached += static_cast<int64_t>(size.bytes);
  }

  void empty_cache() {
    const std::lock_guard lock(mutex_);
    give_back();
  }

  int64_t in_use() const { return in_use_.load(std::memory_order_relaxed); }
  MemoryStats stats() {
    const std::lock_guard lock(mutex_);
    return stats_;
  }
  void reset_peak() {
    const std::lock_guard lock(mutex_);
    stats_.peak = stats_.in_use;
  }

 private:
  std::byte* take_locked(const Size& size) {
    const std::lock_guard lock(mutex_);
    return take(size);
  }
  /// From what is cached, else from the system. Null: that has no more.
  std::byte* take(const Size& size) {
    std::byte* block = size.index < 0 ? take_pages(size.bytes) : take_small(size);
    if (block == nullptr) return nullptr;
    stats_.cached -= static_cast<int64_t>(size.bytes);
    add_in_use(static_cast<int64_t>(size.bytes));
    stats_.peak = std::max(stats_.peak, stats_.in_use);
    return block;
  }
  std::byte* take_pages(size_t bytes) {
    std::byte* block = pages_.take(bytes);
    if (block != nullptr) return block;
    const size_t added = pages_.grow(bytes);
    if (added == 0) return nullptr;
    count_system(added);
    return pages_.take(bytes);
  }
  std::byte* take_small(const Size& size) {
    if (std::byte* block = free_[static_cast<size_t>(size.index)].pop()) return block;
    void* block = ::operator new(size.bytes, kAlignment, std::nothrow);
    if (block == nullptr) return nullptr;
    count_system(size.bytes);
    return static_cast<std::byte*>(block);
  }
  void add_in_use(int64_t bytes) {
    stats_.in_use += bytes;
    in_use_.store(stats_.in_use, std::memory_order_relaxed);
  }
  void count_system(size_t bytes) {
    ++stats_.system_allocations;
    stats_.system_bytes += static_cast<int64_t>(bytes);
    stats_.cached += static_cast<int64_t>(bytes);
  }
  void give_back() {
    for (FreeList& blocks : free_)
      while (std::byte* block = blocks.pop()) ::operator delete(block, kAlignment);
    pages_.empty();
    stats_.cached = 0;
  }

  std::mutex mutex_;
  std::array<FreeList, SizeClass::kCount> free_;
  PageHeap pages_;
  MemoryStats stats_{};
  std::atomic<int64_t> in_use_ = 0;  // that of stats_, to be seen without the lock
};

// Never destroyed: static and thread-local tensors (caches, the user's own) may outlive any static
// here.
inline Allocator& storages() {
  static Allocator& instance = *new Allocator;
  return instance;
}
inline Allocator& objects() {
  static Allocator& instance = *new Allocator;
  return instance;
}

}  // namespace quern::detail
