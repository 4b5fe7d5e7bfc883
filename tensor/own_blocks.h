// Blocks that a thread takes and gives without waiting for others. Private to storage.cpp.
#pragma once
#include <cstddef>
#include <cstdint>

namespace quern::detail {

/// Not what is large or of 0 bytes.
constexpr bool may_be_own(int64_t bytes) { return bytes > 0 && bytes <= int64_t{1} << 20; }
/// Some that may_be_own(). Error: the system has no more memory.
std::byte* take_own(int64_t bytes);
void give_own(std::byte* block, int64_t bytes);  ///< by any thread
/// All that are free, of all threads, go to objects(), but those of a thread that is just taking or
/// giving.
void give_back_own();

}  // namespace quern::detail
