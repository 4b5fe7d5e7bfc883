// AddressSanitizer is told of blocks on a free list, which it would take for live ones, and of what
// rounding adds to a block. Without it these do nothing.
#pragma once
#if __has_include(<sanitizer/asan_interface.h>)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#endif
