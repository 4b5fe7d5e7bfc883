// What the constructors of optimizers share.
#pragma once
#include <cmath>
#include <initializer_list>
#include <utility>
#include <vector>

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

inline void check_group(std::string_view name, size_t group, size_t groups) {
  check(group < groups, name, "group: expected less than {}, got {}", groups, group);
}

template <class Options>
std::vector<Tensors> params_of(const std::vector<Group<Options>>& groups) {
  std::vector<Tensors> params;
  for (const auto& group : groups) params.push_back(group.params);
  return params;
}

template <class Options>
std::vector<Options> options_of(const std::vector<Group<Options>>& groups) {
  std::vector<Options> options;
  for (const auto& group : groups) options.push_back(group.options);
  return options;
}

}  // namespace quern::optim
