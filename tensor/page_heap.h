// Large blocks, cut from huge pages and joined again. Private to storage.cpp.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory_resource>
#include <set>

namespace quern {

/// Memory for the nodes of maps. What is to come without fail is set aside before. Not thread-safe.
class NodePool final : public std::pmr::memory_resource {
 public:
  /// Sets aside what `count` nodes lack. False: the system has no more.
  bool reserve(size_t count);

 private:
  static constexpr size_t kBytes =
      64;  // of a node of either map: links and colour are 32, values 24
  struct Spare {
    Spare* next;
  };

  void* do_allocate(size_t bytes, size_t alignment) override;
  void do_deallocate(void* node, size_t bytes, size_t alignment) override;
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
    return this == &other;
  }
  void add(void* node);

  std::pmr::monotonic_buffer_resource slabs_;
  Spare* spare_ = nullptr;
  size_t spares_ = 0;
};

/// Hands out blocks of whole pages. A freed block joins its free neighbours, so that a step of
/// training, whose sizes rise and fall, needs little more than what is live at its peak: free lists
/// of fixed sizes hold blocks of sizes that are not asked for again. Not thread-safe. Throws
/// nothing.
class PageHeap {
 public:
  static constexpr size_t kPage = 4096;

  /// A block of `bytes`, a multiple of kPage, cut from what was freed. Null: nothing there fits, or
  /// the system has no memory to keep account of it.
  /// Small ones, which come often and may stay long, are kept together at the lowest addresses:
  /// strewn among large ones, they leave gaps of every size but the one wanted next.
  std::byte* take(size_t bytes);
  /// Cannot fail: destructors call it.
  void give(std::byte* block, size_t bytes);

  /// Asks the system for memory until take(bytes) succeeds. Returns the bytes added; 0: it has no
  /// more.
  size_t grow(size_t bytes);
  /// Gives all free blocks back to the system.
  void empty();

 private:
  struct Free {
    size_t bytes;
    uint64_t time;  // when it was freed
  };
  struct Fit {  // the order of preference among blocks
    size_t bytes;
    uint64_t time;
    std::byte* block;
    bool operator<(const Fit& other) const {
      return bytes != other.bytes ? bytes < other.bytes : time > other.time;
    }
  };
  using ByAddress = std::pmr::map<std::byte*, Free>;

  /// The beginning of the first that fits.
  std::byte* take_lowest(size_t bytes);
  /// The end of the smallest that fits, of equals of the last freed, the likeliest to be in a
  /// cache.
  std::byte* take_smallest(size_t bytes);
  /// Nodes enough to insert all blocks that are out, and what take() or grow() puts beside them.
  bool prepare() { return nodes_.reserve(2 * (blocks_out_ + 2)); }
  void join(std::byte* block, size_t bytes);
  void insert(std::byte* block, Free free);
  void erase(ByAddress::iterator free);

  NodePool nodes_;
  ByAddress free_{&nodes_};
  std::pmr::set<Fit> fits_{&nodes_};
  size_t blocks_out_ = 0;
  uint64_t time_ = 0;
  std::byte* last_ = nullptr;  // the last region from the system; the next one is put before it
};

}  // namespace quern
