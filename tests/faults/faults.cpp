#include "faults.h"

#include <sys/mman.h>

#include <atomic>
#include <cstdlib>
#include <limits>
#include <new>

#include "quern/tensor/storage.h"

namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
std::atomic<int64_t> count{0}, first{kNever}, last{kNever}, live{0};

bool fails() {
  const int64_t n = ++count;
  return first <= n && n <= last;
}

void* block_of(size_t bytes, size_t alignment) {
  if (fails()) return nullptr;
  void* const block = std::aligned_alloc(alignment, (bytes / alignment + 1) * alignment);
  if (block != nullptr) ++live;
  return block;
}
void* block_or_throw(size_t bytes, size_t alignment) {
  void* const block = block_of(bytes, alignment);
  if (block == nullptr) throw std::bad_alloc();
  return block;
}
void release(void* block) {
  if (block == nullptr) return;
  --live;
  std::free(block);
}
void request() {
  if (fails()) throw std::bad_alloc();
}

constexpr size_t kPlain = alignof(std::max_align_t);
size_t of(std::align_val_t alignment) { return static_cast<size_t>(alignment); }

}  // namespace

// All forms: a sanitizer brings its own of each that is not here, which does not go with the
// others.
using std::align_val_t, std::nothrow_t;
void* operator new(size_t n) { return block_or_throw(n, kPlain); }
void* operator new[](size_t n) { return block_or_throw(n, kPlain); }
void* operator new(size_t n, align_val_t a) { return block_or_throw(n, of(a)); }
void* operator new[](size_t n, align_val_t a) { return block_or_throw(n, of(a)); }
void* operator new(size_t n, const nothrow_t&) noexcept { return block_of(n, kPlain); }
void* operator new[](size_t n, const nothrow_t&) noexcept { return block_of(n, kPlain); }
void* operator new(size_t n, align_val_t a, const nothrow_t&) noexcept {
  return block_of(n, of(a));
}
void* operator new[](size_t n, align_val_t a, const nothrow_t&) noexcept {
  return block_of(n, of(a));
}
void operator delete(void* p) noexcept { release(p); }
void operator delete[](void* p) noexcept { release(p); }
void operator delete(void* p, size_t) noexcept { release(p); }
void operator delete[](void* p, size_t) noexcept { release(p); }
void operator delete(void* p, align_val_t) noexcept { release(p); }
void operator delete[](void* p, align_val_t) noexcept { release(p); }
void operator delete(void* p, size_t, align_val_t) noexcept { release(p); }
void operator delete[](void* p, size_t, align_val_t) noexcept { release(p); }
void operator delete(void* p, const nothrow_t&) noexcept { release(p); }
void operator delete[](void* p, const nothrow_t&) noexcept { release(p); }
void operator delete(void* p, align_val_t, const nothrow_t&) noexcept { release(p); }
void operator delete[](void* p, align_val_t, const nothrow_t&) noexcept { release(p); }

// The linker puts these before mmap and before the three ways to the library's allocator
// (CMakeLists.txt), which so needs no switch for tests.
extern "C" {
#define REAL(name) __real_##name
#define WRAP(name) __wrap_##name
void* REAL(mmap)(void*, size_t, int, int, int, off_t);
void* WRAP(mmap)(void* at, size_t bytes, int protection, int flags, int file, off_t offset) {
  if (fails()) return MAP_FAILED;
  return REAL(mmap)(at, bytes, protection, flags, file, offset);
}
// quern::Storage::Storage(int64_t), called as one or the other by different compilers
void REAL(_ZN5quern7StorageC1El)(quern::Storage*, int64_t);
void WRAP(_ZN5quern7StorageC1El)(quern::Storage* storage, int64_t bytes) {
  request();
  REAL(_ZN5quern7StorageC1El)(storage, bytes);
}
void REAL(_ZN5quern7StorageC2El)(quern::Storage*, int64_t);
void WRAP(_ZN5quern7StorageC2El)(quern::Storage* storage, int64_t bytes) {
  request();
  REAL(_ZN5quern7StorageC2El)(storage, bytes);
}
// quern::Workspace::Workspace(int64_t)
void REAL(_ZN5quern9WorkspaceC1El)(quern::Workspace*, int64_t);
void WRAP(_ZN5quern9WorkspaceC1El)(quern::Workspace* workspace, int64_t bytes) {
  request();
  REAL(_ZN5quern9WorkspaceC1El)(workspace, bytes);
}
void REAL(_ZN5quern9WorkspaceC2El)(quern::Workspace*, int64_t);
void WRAP(_ZN5quern9WorkspaceC2El)(quern::Workspace* workspace, int64_t bytes) {
  request();
  REAL(_ZN5quern9WorkspaceC2El)(workspace, bytes);
}
// quern::detail::allocate_object(size_t)
void* REAL(_ZN5quern6detail15allocate_objectEm)(size_t);
void* WRAP(_ZN5quern6detail15allocate_objectEm)(size_t bytes) {
  request();
  return REAL(_ZN5quern6detail15allocate_objectEm)(bytes);
}
}

namespace quern::test {

Fault::Fault(int64_t n, bool lasting) {
  count = 0;
  last = lasting ? kNever : n;
  first = n;
}
Fault::~Fault() { first = last = kNever; }
int64_t Fault::requests() const { return count; }
int64_t live_blocks() { return live; }

}  // namespace quern::test
