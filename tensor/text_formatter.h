// How quern's types print in messages, for headers that every file includes: fmt/format.h would be
// compiled in each.
#pragma once
#include <fmt/core.h>

#include <algorithm>

namespace quern {

/// Base of the fmt::formatter of a T that prints as its to_string, by "{}" alone.
template <class T>
struct TextFormatter {
  constexpr auto parse(fmt::format_parse_context& ctx) { return ctx.begin(); }
  auto format(const T& value, fmt::format_context& ctx) const {
    const auto& text = to_string(value);
    return std::copy(text.begin(), text.end(), ctx.out());
  }
};

}  // namespace quern
