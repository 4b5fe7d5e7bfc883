// Sets the precision of f32 products for a scope.
#pragma once
#include <string_view>

#include "quern/ops/detail/matrix.h"
#include "quern/ops/float32_matmul_precision.h"

namespace quern::test {

/// And takes bf16 to be so many times as fast as f32, so that it is used on any CPU.
class Precision {
 public:
  explicit Precision(std::string_view precision, int bf16_speed = 4)
      : before_(get_float32_matmul_precision()) {
    set_float32_matmul_precision(precision);
    detail::assume_bf16_speed(bf16_speed);
  }
  ~Precision() {
    set_float32_matmul_precision(before_);
    detail::assume_bf16_speed(0);
  }

 private:
  std::string_view before_;
};

}  // namespace quern::test
