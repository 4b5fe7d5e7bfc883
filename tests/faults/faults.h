// Memory that ends at the n-th request: of operator new, of the system's pages, and of the
// library's own allocator, whose free lists would hide most of them from the two.
#pragma once
#include <cstdint>

namespace quern::test {

/// For a scope, the n-th request from now on fails, whichever thread makes it; with `lasting` all
/// after it, too.
class Fault {
 public:
  explicit Fault(int64_t n, bool lasting = false);
  ~Fault();
  Fault(const Fault&) = delete;
  Fault& operator=(const Fault&) = delete;
  int64_t requests() const;  ///< so far in this scope
};

/// Blocks of operator new that nobody has deleted.
int64_t live_blocks();

}  // namespace quern::test
