#include "quern/tensor/storage.h"

#include "quern/tensor/allocator.h"
#include "quern/tensor/own_blocks.h"

namespace quern {

using namespace detail;

namespace {

uint64_t next_id() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

}  // namespace

Storage::Storage(int64_t bytes)
    : data_(storages().allocate(bytes)), bytes_(bytes), id_(next_id()) {}
Storage::Storage(std::byte* data, int64_t bytes, std::shared_ptr<void> owner)
    : data_(data), bytes_(bytes), id_(next_id()), owner_(std::move(owner)) {}
Storage::~Storage() {
  if (!owner_) storages().release(data_, bytes_);
}

Workspace::Workspace(int64_t bytes)
    : data_(bytes == 0          ? nullptr
            : may_be_own(bytes) ? take_own(bytes)
                                : storages().allocate(bytes)),
      bytes_(bytes) {}
Workspace::~Workspace() {
  if (may_be_own(bytes_)) give_own(data_, bytes_);
  else if (data_ != nullptr) storages().release(data_, bytes_);
}

void* detail::allocate_object(size_t bytes) {
  const auto wanted = static_cast<int64_t>(bytes);
  return may_be_own(wanted) ? take_own(wanted) : objects().allocate(wanted);
}
void detail::release_object(void* object, size_t bytes) {
  auto* const block = static_cast<std::byte*>(object);
  const auto had = static_cast<int64_t>(bytes);
  if (may_be_own(had)) give_own(block, had);
  else objects().release(block, had);
}

MemoryStats memory_stats() { return storages().stats(); }
int64_t memory_in_use() { return storages().in_use(); }
void reset_peak_memory_stats() { storages().reset_peak(); }
void empty_cache() {
  give_back_own();
  storages().empty_cache();
  objects().empty_cache();
}

}  // namespace quern
