#include "quern/ops/pack_cache.h"

#include <array>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <list>
#include <mutex>
#include <unordered_map>

#include "quern/autograd/grad_mode.h"
#include "quern/ops/detail/packed_copy.h"
#include "quern/tensor/fork.h"
#include "quern/tensor/span.h"

namespace quern {
namespace {

struct Source {
  uint64_t storage = 0;
  int64_t offset = 0;
  Shape shape;
  Strides strides;
  DType dtype = DType::f32;
  bool operator==(const Source&) const = default;

  Source() = default;
  explicit Source(const Tensor& t)
      : storage(t.storage()->id()),
        offset(t.offset()),
        shape(t.shape()),
        strides(t.strides()),
        dtype(t.dtype()) {}
};

/// All that tells a copy but the version, which is the sum of its sources': they only grow. A newer
/// version takes the place of an older one.
struct Key {
  Source weight;
  std::array<Source, detail::kMaxPackedWith> with;
  const kernels::GemmKernel* kernel;
  std::string_view layout;
  detail::PackingParameters parameters;
  bool operator==(const Key&) const = default;
};

struct Entry {
  Key key;
  uint64_t version;
  std::weak_ptr<Storage> source;
  std::shared_ptr<const Storage> copy;  // null: asked for once so far
};

/// A bound from the environment.
int64_t limit(const char* variable, int64_t otherwise) {
  const char* const text = std::getenv(variable);
  if (text == nullptr || *text == '\0') return otherwise;
  constexpr int64_t most = INT64_MAX >> 20;  // so that MiB fit in bytes
  int64_t value = -1;
  const char* const end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, value);
  check(error == std::errc() && stop == end && value >= 0 && value <= most, "pack_cache",
        "{}: expected a number, 0..{}, got \"{}\"", variable, most, text);
  return value;
}

class Cache {
 public:
  Cache() {
    detail::hold_across_fork(mutex_);
    detail::hold_across_fork(making_);
  }

  /// Held by who makes a copy that is to be kept: others that want it wait for it, rather than make
  /// one each.
  std::mutex& making() { return making_; }

  /// The kept copy, or null; then `keep` becomes true if the next one made is to be put().
  std::shared_ptr<const Storage> find(const Key& key, uint64_t version,
                                      const std::shared_ptr<Storage>& source, bool& keep) {
    const std::lock_guard lock(mutex_);
    const auto entry = at(key);
    if (entry == entries_.end()) {
      forget_dead();
      Entries fresh;  // seen by nobody before both tables have room for it
      fresh.push_front({key, version, source, nullptr});
      by_storage_.emplace(key.weight.storage, fresh.begin());
      entries_.splice(entries_.begin(), fresh);
      ++stats_.misses;
      trim();
      return nullptr;
    }
    entries_.splice(entries_.begin(), entries_, entry);
    if (entry->version == version && entry->copy) {
      ++stats_.hits;
      return entry->copy;
    }
    ++stats_.misses;
    keep = keep || entry->version == version;
    drop_copy(*entry);
    entry->version = version;
    return nullptr;
  }

  void put(const Key& key, uint64_t version, std::shared_ptr<const Storage> copy) {
    const std::lock_guard lock(mutex_);
    const auto entry = at(key);
    if (entry == entries_.end() || entry->version != version || entry->copy) return;
    ++stats_.entries;
    stats_.bytes += copy->bytes();
    entry->copy = std::move(copy);
    trim();
  }

  PackCacheStats stats() {
    const std::lock_guard lock(mutex_);
    return stats_;
  }

  void clear() {
    const std::lock_guard lock(mutex_);
    by_storage_.clear();
    entries_.clear();
    stats_ = {};
  }

  void set_limits(int64_t entries, int64_t bytes) {
    check(entries >= 0 && bytes >= 0, "set_pack_cache_limits",
          "limits: expected at least 0 copies and 0 bytes, got {} and {}", entries, bytes);
    const std::lock_guard lock(mutex_);
    max_entries_ = entries, max_bytes_ = bytes;
    trim();
  }

 private:
  using Entries = std::list<Entry>;  // most recently used first

  // By hash: a network asks for its weights in turn, so that the one wanted is always the least
  // recently used, at the far end of the list.
  Entries::iterator at(const Key& key) {
    for (auto [i, end] = by_storage_.equal_range(key.weight.storage); i != end; ++i)
      if (i->second->key == key) return i->second;
    return entries_.end();
  }
  void drop_copy(Entry& entry) {
    if (!entry.copy) return;
    --stats_.entries;
    stats_.bytes -= entry.copy->bytes();
    entry.copy.reset();
  }
  Entries::iterator erase(Entries::iterator entry) {
    drop_copy(*entry);
    auto place = by_storage_.equal_range(entry->key.weight.storage).first;
    while (place->second != entry) ++place;
    by_storage_.erase(place);
    return entries_.erase(entry);
  }
  void forget_dead() {
    for (auto entry = entries_.begin(); entry != entries_.end();)
      entry = entry->source.expired() ? erase(entry) : std::next(entry);
  }
  void trim() {
    while (!entries_.empty() &&
           (static_cast<int64_t>(entries_.size()) > max_entries_ || stats_.bytes > max_bytes_))
      erase(std::prev(entries_.end()));
  }

  std::mutex mutex_, making_;
  Entries entries_;
  std::unordered_multimap<uint64_t, Entries::iterator> by_storage_;
  PackCacheStats stats_{};
  int64_t max_entries_ = limit("QUERN_PACK_CACHE_CAPACITY", kPackCacheCapacity);
  int64_t max_bytes_ = limit("QUERN_PACK_CACHE_MIB", kPackCacheBytes >> 20) << 20;
};

Cache& cache() {
  static Cache& instance = *new Cache;  // never destroyed: static models may infer after it
  return instance;
}

}  // namespace

std::shared_ptr<const Storage> detail::packed_copy(const Tensor& weight, std::string_view layout,
                                                   const kernels::GemmKernel& kernel, int64_t bytes,
                                                   FunctionRef<void(void*)> pack,
                                                   const PackingParameters& parameters,
                                                   std::span<const Tensor> with) {
  Key key{Source(weight), {}, &kernel, layout, parameters};
  uint64_t version = weight.version();
  bool exposed = weight.exposed();  // may change unseen
  for (size_t i = 0; i < with.size(); ++i) {
    if (!with[i].defined()) continue;
    key.with.at(i) = Source(with[i]);
    version += with[i].version();
    exposed = exposed || with[i].exposed();
  }
  bool keep = !grad_enabled() && !detail::thread_mode().backward;  // so this is inference
  if (exposed) keep = false;
  else if (auto kept = cache().find(key, version, weight.storage(), keep)) return kept;
  std::unique_lock making(cache().making(), std::defer_lock);
  if (keep && !making.try_lock()) {
    making.lock();
    if (auto kept = cache().find(key, version, weight.storage(), keep)) return kept;
  }
  const Span span("pack_weight");
  auto copy = make_storage(bytes);
  pack(copy->data());
  if (keep) cache().put(key, version, copy);
  return copy;
}

PackCacheStats pack_cache_stats() { return cache().stats(); }
void clear_pack_cache() { cache().clear(); }
void set_pack_cache_limits(int64_t entries, int64_t bytes) { cache().set_limits(entries, bytes); }

}  // namespace quern
