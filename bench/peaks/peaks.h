// What this machine can do at most, as measured when the program starts.
#pragma once
#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "quern/tensor/types.h"

namespace quern::bench {

struct Peaks {
  struct Arithmetic {
    std::string name;
    Isa isa;
    DType dtype;
    double gflops;
  };
  struct Memory {
    std::string level;          // "L1", "L2", "L3", "memory"
    int64_t bytes;              // that all threads' shares of the level hold; memory: no limit
    double read, copy, update;  // GB/s, reads plus writes
    double best() const { return std::max({read, copy, update}); }
    /// Of what reads some tensors and writes others.
    double apart() const { return std::max(read, copy); }
  };
  int threads;
  std::vector<Arithmetic> arithmetic;
  std::vector<Memory> memory;

  /// The fastest loop on this dtype's factors; bf16 may be widened to f32.
  double gflops(DType dtype) const;
  /// Bandwidth of the first level that holds so many bytes.
  const Memory& level(int64_t bytes) const;

  void print(std::FILE*) const;
  nlohmann::json json() const;
};

/// Takes about a second, on num_threads() threads.
Peaks measure_peaks();

using PeaksByThreads = std::map<int, Peaks>;

}  // namespace quern::bench
