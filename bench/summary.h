// The convolutions of a whole network: a row each, and their sums.
#pragma once
#include "options.h"
#include "peaks.h"

namespace quern::bench {

/// Prints a table for each number of threads, dtype, layout and kernel asked for. False if a result
/// was wrong, of which stderr tells.
bool print_summary(const Options&, const PeaksByThreads&);

}  // namespace quern::bench
