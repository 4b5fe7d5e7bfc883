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

/// What Adam and the rules after it have in common.
template <class Options>
void check_like_adam(std::string_view name, const Options& o) {
  check_not_negative(name, {{"lr", o.lr},
                            {"beta1", o.beta1},
                            {"beta2", o.beta2},
                            {"eps", o.eps},
                            {"weight_decay", o.weight_decay}});
  check(o.beta1 < 1 && o.beta2 < 1, name, "beta1, beta2: expected less than 1, got {}, {}", o.beta1,
        o.beta2);
}

}  // namespace quern::optim
