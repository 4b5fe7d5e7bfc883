#include "quern/tensor/page_heap.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <new>
#include <utility>

#include "quern/tensor/asan.h"

namespace quern {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

/// Blocks below this are small: what leaves the fewest gaps in training ResNet-50.
constexpr size_t kLarge = size_t{4} << 20;

size_t whole_pages(size_t bytes) { return (bytes + kHugePage - 1) / kHugePage * kHugePage; }

std::byte* map(std::byte* where, size_t bytes) {
  void* region = mmap(where, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return region == MAP_FAILED ? nullptr : static_cast<std::byte*>(region);
}

/// A new region of whole huge pages, aligned to one.
std::byte* map_aligned(size_t bytes) {
  std::byte* region = map(nullptr, bytes + kHugePage);
  if (region == nullptr) return nullptr;
  const size_t past = reinterpret_cast<uintptr_t>(region) % kHugePage;
  // The last aligned place: the system maps downwards, so the next region may end where this
  // begins.
  const size_t before = kHugePage - past;
  munmap(region, before);
  if (past != 0) munmap(region + before + bytes, past);
  return region + before;
}

}  // namespace

bool NodePool::reserve(size_t count) {
  try {
    while (spares_ < count) add(slabs_.allocate(kBytes));
  } catch (const std::bad_alloc&) {
    return false;
  }
  return true;
}

void* NodePool::do_allocate(size_t bytes, size_t alignment) {
  if (spare_ == nullptr || bytes > kBytes || alignment > alignof(std::max_align_t))
    throw std::bad_alloc();
  --spares_;
  return std::exchange(spare_, spare_->next);
}

void NodePool::do_deallocate(void* node, size_t, size_t) { add(node); }

void NodePool::add(void* node) {
  spare_ = ::new (node) Spare{spare_};
  ++spares_;
}

std::byte* PageHeap::take(size_t bytes) {
  if (!prepare()) return nullptr;
  std::byte* block = bytes < kLarge ? take_lowest(bytes) : take_smallest(bytes);
  if (block != nullptr) ++blocks_out_;
  return block;
}

std::byte* PageHeap::take_lowest(size_t bytes) {
  const auto fit =
      std::ranges::find_if(free_, [=](const auto& f) { return f.second.bytes >= bytes; });
  if (fit == free_.end()) return nullptr;
  const auto [block, free] = *fit;
  erase(fit);
  if (free.bytes != bytes) insert(block + bytes, {free.bytes - bytes, free.time});
  return block;
}

std::byte* PageHeap::take_smallest(size_t bytes) {
  const auto fit = fits_.lower_bound({bytes, ~uint64_t{0}, nullptr});
  if (fit == fits_.end()) return nullptr;
  const auto [size, time, block] = *fit;
  const size_t rest = size - bytes;
  erase(free_.find(block));
  if (rest != 0) insert(block, {rest, time});  // the beginning stays free: grow() can prolong it
  return block + rest;
}

void PageHeap::give(std::byte* block, size_t bytes) {
  join(block, bytes);
  --blocks_out_;
}

/// With its free neighbours.
void PageHeap::join(std::byte* block, size_t bytes) {
  auto next = free_.lower_bound(block);
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second.bytes == block) {
      block = before->first;
      bytes += before->second.bytes;
      erase(before);
    }
  }
  if (next != free_.end() && block + bytes == next->first) {
    bytes += next->second.bytes;
    erase(next);
  }
  insert(block, {bytes, ++time_});
}

size_t PageHeap::grow(size_t bytes) {
  if (bytes > (size_t{1} << 62) || !prepare()) return 0;
  std::byte* region = nullptr;
  size_t added = 0;
  if (last_ != nullptr) {  // prolong the last region by what its free beginning lacks
    const auto first = free_.find(last_);
    added = whole_pages(bytes - (first == free_.end() ? 0 : first->second.bytes));
    if (added < reinterpret_cast<uintptr_t>(last_)) region = map(last_ - added, added);
    if (region != nullptr && region != last_ - added) {
      munmap(region, added);
      region = nullptr;
    }
  }
  if (region == nullptr) {
    added = whole_pages(bytes);
    region = map_aligned(added);
    if (region == nullptr) return 0;
  }
#ifdef MADV_HUGEPAGE
  madvise(region, added, MADV_HUGEPAGE);  // a wish: small pages serve as well
#endif
  last_ = region;
  join(region, added);
  return added;
}

void PageHeap::empty() {
  for (const auto& [block, free] : free_) {
    ASAN_UNPOISON_MEMORY_REGION(block, free.bytes);  // the next to be mapped there is not ours
    munmap(block, free.bytes);
  }
  free_.clear();
  fits_.clear();
  last_ = nullptr;
}

void PageHeap::insert(std::byte* block, Free free) {
  free_[block] = free;
  fits_.insert({free.bytes, free.time, block});
}

void PageHeap::erase(ByAddress::iterator free) {
  fits_.erase({free->second.bytes, free->second.time, free->first});
  free_.erase(free);
}

}  // namespace quern
