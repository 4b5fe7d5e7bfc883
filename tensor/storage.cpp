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

namespace quern {
namespace {

constexpr size_t kAlignment = 64;              // a cache line, and the widest vector
constexpr size_t kHugePage = size_t{2} << 20;  // blocks from this size on lie on huge pages

/// Blocks come in few sizes so that a freed one soon fits again: four a power of two (waste at most
/// a quarter), in units of 64 bytes. 0 bytes take the smallest, so that a data pointer is never
/// null.
struct SizeClass {
  int index;
  size_t bytes;

  explicit SizeClass(int64_t requested) {
    const uint64_t units = std::max<uint64_t>((static_cast<uint64_t>(requested) + 63) / 64, 1);
    const int doubling = std::max(static_cast<int>(std::bit_width(units - 1)), 3) - 3;
    const uint64_t quarters = (units + (uint64_t{1} << doubling) - 1) >> doubling;  // up to 8
    index = 4 * doubling + static_cast<int>(quarters) - 1;
    bytes = (quarters << doubling) * 64;
  }
  static constexpr int kCount = 4 * 55 + 8;
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
    if (std::byte* block = take_cached(size)) return block;
    std::byte* block = system_allocate(size.bytes);
    if (block == nullptr) {
      empty_cache();
      block = system_allocate(size.bytes);
    }
    check(block != nullptr, "storage", "memory: expected {} bytes, the system has no more",
          requested);
    const std::lock_guard lock(mutex_);
    ++stats_.system_allocations;
    stats_.system_bytes += static_cast<int64_t>(size.bytes);
    count_use(size);
    return block;
  }

  void release(std::byte* block, int64_t requested) {
    const SizeClass size(requested);
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
