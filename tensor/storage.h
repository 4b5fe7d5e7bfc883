// Storage: a reference-counted, 64-byte aligned block with a version, from a caching allocator.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace quern {

/// One allocation, shared by a tensor and its views.
class Storage {
 public:
  /// An uninitialised block of `bytes`. Error: the system has no more, even once free lists are
  /// given back to it.
  explicit Storage(int64_t bytes);
  /// `bytes` at `data`, which `owner` keeps there until the storage is gone.
  Storage(std::byte* data, int64_t bytes, std::shared_ptr<void> owner);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  std::byte* data() const { return data_; }  ///< its first byte, 64-byte aligned
  /// As many as were asked for.
  int64_t bytes() const { return bytes_; }
  /// Who keeps the memory where it is not the library's own, such as a RowTable; else null.
  const std::shared_ptr<void>& owner() const { return owner_; }
  /// Unique in the process, never used again: a cache may key on it.
  uint64_t id() const { return id_; }
  /// Counts in-place changes. A saved tensor or a packed weight of an older version is stale.
  /// Whoever writes moves it on afterwards: what another thread read meanwhile is stale by then,
  /// too.
  uint64_t version() const { return version_.load(std::memory_order_acquire); }
  /// One more change in place.
  void bump_version() { version_.fetch_add(1, std::memory_order_release); }
  /// Has a pointer to write through been given away (Tensor::mutable_data)? Nobody sees what is
  /// written there, or when, so that ops keep no copies made from this block.
  bool exposed() const { return exposed_.load(std::memory_order_relaxed); }
  /// Says that a pointer to write through is given away.
  void expose() { exposed_.store(true, std::memory_order_relaxed); }

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
  uint64_t id_ = 0;
  std::shared_ptr<void> owner_;
  std::atomic<uint64_t> version_ = 0;
  std::atomic<bool> exposed_ = false;
};

/// A change in place: the version moves on when it ends, however it ends.
class InPlaceChange {
 public:
  /// Of the block that is about to be written.
  explicit InPlaceChange(std::shared_ptr<Storage> storage) : storage_(std::move(storage)) {}
  ~InPlaceChange() { storage_->bump_version(); }
  InPlaceChange(const InPlaceChange&) = delete;
  InPlaceChange& operator=(const InPlaceChange&) = delete;

 private:
  std::shared_ptr<Storage> storage_;
};

/// Scratch memory of a kernel: aligned, cached, uninitialised, freed at the end of its scope. Null
/// if it is of 0 bytes.
class Workspace {
 public:
  /// Error: the system has no more memory.
  explicit Workspace(int64_t bytes);
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  /// Its first byte, as what it is used for.
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  std::byte* data_;
  int64_t bytes_;
};

namespace detail {
void* allocate_object(size_t bytes);
void release_object(void* object, size_t bytes);
}  // namespace detail

/// An allocator of the standard library with free lists of its own, for what every call makes anew
/// besides storages: handles of tensors, short tables.
template <class T>
struct CachedAllocator {
  using value_type = T;  ///< as the standard library asks

  CachedAllocator() = default;
  /// All are the same, of whatever type.
  template <class U>
  CachedAllocator(const CachedAllocator<U>&) {}
  /// Room for n objects. Error: the system has no more memory.
  T* allocate(size_t n) { return static_cast<T*>(detail::allocate_object(n * sizeof(T))); }
  /// Back to the free lists.
  void deallocate(T* objects, size_t n) { detail::release_object(objects, n * sizeof(T)); }
  bool operator==(const CachedAllocator&) const = default;  ///< what one took another may give back
};
/// A vector from these free lists.
template <class T>
using CachedVector = std::vector<T, CachedAllocator<T>>;

/// A Storage of so many bytes.
inline std::shared_ptr<Storage> make_storage(int64_t bytes) {
  return std::allocate_shared<Storage>(CachedAllocator<Storage>(), bytes);
}

/// What storages, and workspaces of more than 1 MiB, hold of the machine's memory.
struct MemoryStats {
  int64_t in_use;  ///< bytes held by those that live, rounding to classes and pages included
  int64_t peak;    ///< largest in_use since the start or reset_peak_memory_stats()
  int64_t cached;  ///< bytes kept on the free lists
  int64_t system_allocations;  ///< times memory was asked of the system
  int64_t system_bytes;        ///< bytes asked of the system in those
};
MemoryStats memory_stats();  ///< of this moment
/// memory_stats().in_use, at a glance.
int64_t memory_in_use();
void reset_peak_memory_stats();  ///< the peak counts from here on
/// Gives the free lists back to the system.
void empty_cache();

}  // namespace quern
