// The command line of quern_bench, but for what Google Benchmark reads.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "quern/tensor/memory_format.h"
#include "quern/tensor/types.h"

namespace quern::bench {

struct Options {
  int64_t batch = 16;
  std::vector<int> threads;  // at least one
  std::vector<DType> dtypes;
  std::vector<MemoryFormat> formats;
  std::vector<std::string> isas{"best"};  // "best", "all" or ends of record names
  bool cold = false, fused = false;
  bool peaks = false, summary = false;   // print these and nothing else
  bool list = false;                     // Google Benchmark's, which needs no peaks
  int runs = 5;                          // of the summary
  std::string conv_shapes, gemm_shapes;  // files

  /// Is the record with this name to be run, given whether dispatch would take it?
  bool wants(std::string_view record, bool dispatched) const;
};

/// Takes its own options out of argv; the rest is Google Benchmark's. Ends the program after --help
/// (exit 0) and values that are none (exit 2).
Options parse_options(int& argc, char** argv);

inline const char* short_name(MemoryFormat format) {
  return format == MemoryFormat::channels_last ? "nhwc" : "nchw";
}

}  // namespace quern::bench
