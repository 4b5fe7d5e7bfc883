// What the constructors of optimizers share.
#pragma once
#include <cmath>
#include <initializer_list>
#include <utility>

#include "quern/optim/optimizer.h"

namespace quern::optim {

inline void check_not_negative(std::string_view name, std::string_view option, double value) {
  check(std::isfinite(value) && value >= 0, name,
        "{}: expected a finite number of at least 0, got {}", option, value);
}

/// Several, by name.
inline void check_not_negative(std::string_view name,
                               std::initializer_list<std::pair<std::string_view, double>> options) {
  for (const auto& [option, value] : options) check_not_negative(name, option, value);
}

}  // namespace quern::optim
