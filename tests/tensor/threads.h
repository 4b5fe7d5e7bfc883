// What the tests of threads have in common.
#pragma once
#include <limits>

#include "quern/tensor/parallel.h"

namespace quern::test {

/// Sets the number of threads for a scope, or whatever that sets it to.
class Threads {
 public:
  explicit Threads(int threads = num_threads()) : before_(num_threads()) {
    set_num_threads(threads);
  }
  ~Threads() { set_num_threads(before_); }

 private:
  int before_;
};

/// A denormal times one, computed when asked: 0 where denormals are flushed.
inline float denormal_product() {
  volatile float denormal = std::numeric_limits<float>::denorm_min(), one = 1.0f;
  return denormal * one;
}

}  // namespace quern::test
