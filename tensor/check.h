// Errors. Every message reads `[op] argument: expected ..., got ...`.
#pragma once
#include <fmt/core.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace quern {

/// What every check throws, and all that bad input makes quern throw: never a broken invariant of
/// quern's own.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Throws Error("[op] message").
[[noreturn]] inline void fail(std::string_view op, std::string_view message) {
  throw Error(fmt::format("[{}] {}", op, message));
}

/// As what a message shows a T: as itself, except where a type has another one for it.
template <class T>
struct InMessage {
  using Type = T;  ///< what is formatted
};

/// Throws Error("[op] message") unless `ok`. Arguments are formatted only then:
///   check(c == 64, "conv2d", "weight: expected {} input channels, got {}", 64, c);
template <class... Args>
void check(bool ok, std::string_view op,
           fmt::format_string<const typename InMessage<Args>::Type&...> message,
           const Args&... args) {
  if (!ok) [[unlikely]]
    fail(op, fmt::format(message, static_cast<const typename InMessage<Args>::Type&>(args)...));
}

}  // namespace quern
