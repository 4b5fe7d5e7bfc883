// A set-associative cache of a core that drops the line unused for longest.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

namespace quern::bench {

class Cache {
 public:
  static constexpr uintptr_t kLine = 64;

  Cache(size_t bytes, size_t ways)
      : ways_(ways), sets_(bytes / ways / kLine), lines_(sets_ * ways, kNone) {}

  struct Found {
    bool hit, wrote_back;  // what had to go was written before
  };
  /// Line `line` of memory, which is there afterwards, in front of its set.
  Found touch(uintptr_t line, bool write) {
    uintptr_t* const set = &lines_[line % sets_ * ways_];
    const uintptr_t mark = write ? 1 : 0;
    size_t way = 0;
    while (way + 1 < ways_ && set[way] >> 1 != line) ++way;
    const uintptr_t found = set[way];
    const bool hit = found >> 1 == line;
    std::copy_backward(set, set + way, set + way + 1);
    set[0] = line << 1 | mark | (hit ? found & 1 : 0);
    return {hit, !hit && found != kNone && (found & 1) != 0};
  }

 private:
  static constexpr uintptr_t kNone = ~uintptr_t{0};
  size_t ways_, sets_;
  std::vector<uintptr_t> lines_;  // [set][way], the newest first; the last bit: written
};

}  // namespace quern::bench
