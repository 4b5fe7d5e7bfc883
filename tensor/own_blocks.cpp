#include "quern/tensor/own_blocks.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <span>

#include "quern/tensor/allocator.h"

namespace quern::detail {
namespace {

/// Free objects and workspaces of one thread, which takes and gives them without waiting. A call of
/// a convolution makes up to a dozen: 16 threads that evaluate a network, each a task of it, would
/// mostly wait for each other at one lock. And a thread finds in its cache what it had before.
class alignas(64) OwnBlocks {
 public:
  /// Of the calling thread. Null for one too many, and where its thread-local variables are going:
  /// what goes later than these lists is given to all.
  static OwnBlocks* get() {
    if (own_ == nullptr) begin();
    return own_;
  }

  /// Null: there is none.
  std::byte* take(const SizeClass& size) {
    const std::lock_guard lock(mutex_);
    List& list = lists_[static_cast<size_t>(size.index)];
    std::byte* const block = list.blocks.pop();
    if (block == nullptr) return nullptr;
    --list.count;
    held_ -= size.bytes;
    return block;
  }
  /// False: it has enough, as where one thread makes what another one frees.
  bool give(std::byte* block, const SizeClass& size) {
    const std::lock_guard lock(mutex_);
    List& list = lists_[static_cast<size_t>(size.index)];
    if (list.count >= std::clamp(kOfASize / size.bytes, kFewest, kMostOfASize)) return false;
    if (held_ + size.bytes > kMost) return false;
    ASAN_POISON_MEMORY_REGION(block, size.bytes);
    list.blocks.push(block);
    list.bytes = size.bytes;
    ++list.count;
    held_ += size.bytes;
    return true;
  }
  /// Those of all threads, but one that is just taking or giving.
  static void give_all_back();

 private:
  /// Blocks of a size are few: they are asked of the system anew for as long as one thread makes
  /// what gathers here, as where each task leaves its result to the caller.
  static constexpr size_t kFewest = 2, kMostOfASize = 16;
  static constexpr size_t kOfASize = size_t{32} << 10, kMost = size_t{4} << 20;  // bytes

  struct List {
    FreeList blocks;
    size_t bytes = 0, count = 0;  // of each; how many
  };
  struct All;
  static All& all();

  void give_back() {
    for (List& list : lists_)
      while (std::byte* block = list.blocks.pop())
        objects().release(block, static_cast<int64_t>(list.bytes));
    lists_ = {}, held_ = 0;
  }
  static OwnBlocks* of_no_thread();
  static void begin();
  static inline constinit thread_local OwnBlocks* own_ = nullptr;

  std::mutex mutex_;
  std::array<List, SizeClass::kCount> lists_;
  size_t held_ = 0;
  bool taken_ = false;  // by a thread
};

/// Of as many threads; more of them share what all have. Never destroyed: the next thread takes
/// over what one leaves.
struct OwnBlocks::All {
  std::mutex mutex;
  std::array<OwnBlocks, 256> of_threads;
  size_t used = 0;  // the first of them

  All() {
    objects();  // whose mutex is taken while this one is held
    hold_across_fork(mutex);
  }
};
OwnBlocks::All& OwnBlocks::all() {
  static All& instance = *new All;
  return instance;
}

void OwnBlocks::give_all_back() {
  All& all = OwnBlocks::all();
  const std::lock_guard lock(all.mutex);
  for (OwnBlocks& own : std::span(all.of_threads).first(all.used))
    if (const std::unique_lock own_lock(own.mutex_, std::try_to_lock); own_lock) own.give_back();
}

OwnBlocks* OwnBlocks::of_no_thread() {
  All& all = OwnBlocks::all();
  const std::lock_guard lock(all.mutex);
  const auto own = std::ranges::find(all.of_threads, false, &OwnBlocks::taken_);
  if (own == all.of_threads.end()) return nullptr;
  own->taken_ = true;
  all.used = std::max<size_t>(all.used, own - all.of_threads.begin() + 1);
  return &*own;
}

void OwnBlocks::begin() {
  struct Lifetime {
    OwnBlocks* const own = own_ = of_no_thread();
    ~Lifetime() {
      own_ = nullptr;
      if (own == nullptr) return;
      const std::lock_guard lock(all().mutex);
      own->taken_ = false;
    }
  };
  thread_local const Lifetime lifetime;
}

}  // namespace

std::byte* take_own(int64_t bytes) {
  const SizeClass size(bytes);
  OwnBlocks* const own = OwnBlocks::get();
  std::byte* block = own != nullptr ? own->take(size) : nullptr;
  if (block == nullptr) block = objects().allocate(static_cast<int64_t>(size.bytes));
  mark_used(block, size.bytes, static_cast<size_t>(bytes));
  return block;
}
void give_own(std::byte* block, int64_t bytes) {
  const SizeClass size(bytes);
  OwnBlocks* const own = OwnBlocks::get();
  if (own == nullptr || !own->give(block, size))
    objects().release(block, static_cast<int64_t>(size.bytes));
}
void give_back_own() { OwnBlocks::give_all_back(); }

}  // namespace quern::detail
