// How quern's types print in messages, for headers that every file includes: fmt/format.h would be compiled in each.
#pragma once
#include <fmt/core.h>

#include <algorithm>
#include <string_view>

namespace quern {

/// Base of a fmt::formatter whose type prints as one text, by "{}" alone.
struct TextFormatter {
  constexpr auto parse(fmt::format_parse_context& ctx) { return ctx.begin(); }

 protected:
  static auto write(std::string_view text, fmt::format_context& ctx) {
    return std::copy(text.begin(), text.end(), ctx.out());
  }
};

}  // namespace quern
