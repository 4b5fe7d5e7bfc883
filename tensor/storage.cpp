#include "quern/tensor/storage.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <mutex>
#include <vector>

#include "quern/tensor/check.h"

#ifdef __linux__
#include <sys/mman.h>
#endif

// AddressSanitizer is told of blocks on a free list, which it would take for live ones, and of what
// rounding adds to a block. Without it these do nothing.
#if __has_include(<sanitizer/asan_interface.h>)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#endif

namespace quern {
namespace {

constexpr size_t kAlignment = 64;              // a cache line, and the widest vector
constexpr size_t kHugePage = size_t{2} << 20;  // blocks from this size on lie on huge pages

/// Blocks come in few sizes so that a freed one soon fits again: four a power of two (waste at most
/// a quarter), in units of 64 bytes. 0 bytes take the smallest, so that a data pointer is never
/// null.
struct SizeClass {
  int index;     // 4·doubling + quarters - 1
  size_t bytes;  // quarters · 2^doubling units; quarters are 5..8 beyond the first eight classes

  explicit SizeClass(int64_t requested) {
    const size_t units = std::max<size_t>((static_cast<size_t>(requested) + kUnit - 1) / kUnit, 1);
    const int doubling = std::max(static_cast<int>(std::bit_width(units - 1)), 3) - 3;
    const size_t quarters = (units + (size_t{1} << doubling) - 1) >> doubling;
    index = 4 * doubling + static_cast<int>(quarters) - 1;
    bytes = (quarters << doubling) * kUnit;
  }

  static constexpr size_t kUnit = 64;
  static constexpr int kCount = 4 * 55 + 8;  // up to 2^63 bytes
};

std::byte* system_allocate(size_t bytes) {
  const bool huge = bytes >= kHugePage;
  void* block = nullptr;
  if (posix_memalign(&block, huge ? kHugePage : kAlignment, bytes) != 0) return nullptr;
#ifdef MADV_HUGEPAGE
  if (huge) madvise(block, bytes, MADV_HUGEPAGE);  // a wish: small pages serve as well
#endif
  return static_cast<std::byte*>(block);
}

class Allocator {
 public:
  std::byte* allocate(int64_t requested) {
    const SizeClass size(requested);
    std::byte* block = take_cached(size);
    if (block == nullptr) block = take_new(size);
    check(block != nullptr, "storage", "memory: expected {} bytes, the system has no more",
          requested);
    ASAN_POISON_MEMORY_REGION(block, size.bytes);
    ASAN_UNPOISON_MEMORY_REGION(block, static_cast<size_t>(requested));
    return block;
  }

  void release(std::byte* block, int64_t requested) {
    const SizeClass size(requested);
    ASAN_POISON_MEMORY_REGION(block, size.bytes);
    const std::lock_guard lock(mutex_);
    free_[static_cast<size_t>(size.index)].push_back(block);
    stats_.in_use -= static_cast<int64_t>(size.bytes);
    stats_.cached += static_cast<int64_t>(size.bytes);
  }

  void empty_cache() {
    const std::lock_guard lock(mutex_);
    for (auto& blocks : free_) {
      for (std::byte* block : blocks) std::free(block);
      blocks.clear();
    }
    stats_.cached = 0;
  }

  MemoryStats stats() {
    const std::lock_guard lock(mutex_);
    return stats_;
  }
  void reset_peak() {
    const std::lock_guard lock(mutex_);
    stats_.peak = stats_.in_use;
  }

 private:
  std::byte* take_cached(const SizeClass& size) {
    const std::lock_guard lock(mutex_);
    auto& blocks = free_[static_cast<size_t>(size.index)];
    if (blocks.empty()) return nullptr;
    std::byte* block = blocks.back();  // the last freed is the likeliest to be in a cache
    blocks.pop_back();
    stats_.cached -= static_cast<int64_t>(size.bytes);
    count_use(size);
    return block;
  }
  std::byte* take_new(const SizeClass& size) {
    std::byte* block = system_allocate(size.bytes);
    if (block == nullptr) {
      empty_cache();
      block = system_allocate(size.bytes);
    }
    if (block == nullptr) return nullptr;
    const std::lock_guard lock(mutex_);
    ++stats_.system_allocations;
    stats_.system_bytes += static_cast<int64_t>(size.bytes);
    count_use(size);
    return block;
  }
  void count_use(const SizeClass& size) {
    stats_.in_use += static_cast<int64_t>(size.bytes);
    stats_.peak = std::max(stats_.peak, stats_.in_use);
  }

  std::mutex mutex_;
  std::array<std::vector<std::byte*>, SizeClass::kCount> free_;
  MemoryStats stats_{};
};

/// Never destroyed: static and thread-local tensors (caches, the user's own) may outlive any static
/// here.
Allocator& allocator() {
  static Allocator& instance = *new Allocator;
  return instance;
}

uint64_t next_id() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

}  // namespace

Storage::Storage(int64_t bytes) : bytes_(bytes), id_(next_id()) {
  check(bytes >= 0, "storage", "bytes: expected at least 0, got {}", bytes);
  data_ = allocator().allocate(bytes);
}

Storage::~Storage() { allocator().release(data_, bytes_); }

Workspace::Workspace(int64_t bytes) : storage_(bytes) {}

MemoryStats memory_stats() { return allocator().stats(); }
void reset_peak_memory_stats() { allocator().reset_peak(); }
void empty_cache() { allocator().empty_cache(); }

}  // namespace quern
