#include "suite.h"

#include <fstream>
#include <limits>

namespace quern::bench {

Operand& Case::integers(DType dtype, int64_t count) {
  Operand& o = operands_.emplace_back(dtype, count);
  o.fill_integers(static_cast<uint32_t>(operands_.size()));
  return o;
}

Operand& Case::uniform(DType dtype, int64_t count) {
  Operand& o = operands_.emplace_back(dtype, count);
  o.fill_uniform(static_cast<uint32_t>(operands_.size()));
  return o;
}

Operand& Case::result(DType dtype, int64_t count) {
  Operand& o = operands_.emplace_back(dtype, count);
  if (is_floating(dtype)) o.fill(std::numeric_limits<double>::quiet_NaN());
  return o;
}

std::vector<std::string> read_shapes(const std::string& path) {
  std::ifstream file(path);
  check(file.good(), "bench", "shapes: expected a readable file, got {}", path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);)
    if (!line.empty() && line[0] != '#') lines.push_back(line);
  return lines;
}

}  // namespace quern::bench
