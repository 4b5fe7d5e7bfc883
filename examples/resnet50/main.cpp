// resnet50 train, resnet50 infer: see options.cpp for what they take, train.cpp and infer.cpp for
// what they do. Exit status: 0, 1 for a failure, 2 for a command line that makes no sense.
#include <fmt/core.h>

#include <exception>
#include <new>

#include "infer.h"
#include "options.h"
#include "output.h"
#include "quern/ops/float32_matmul_precision.h"
#include "quern/tensor/cpu_features.h"
#include "quern/tensor/parallel.h"
#include "train.h"

using namespace resnet50;

int main(int argc, char** argv) {
  const Options options = parse_options(argc, argv);
  try {
    check_outputs(options);
    if (options.threads > 0) quern::set_num_threads(options.threads);
    if (!options.matmul_precision.empty())
      quern::set_float32_matmul_precision(options.matmul_precision);
    if (options.amp && !quern::has_bf16_arithmetic())
      fmt::print(stderr,
                 "resnet50: warning: --amp: {} has no fast bf16 arithmetic: slower than f32\n",
                 quern::to_string(quern::max_isa()));
    if (options.mode == Mode::train) train(options);
    else infer(options);
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "resnet50: error: [memory] expected more of it: the system has no more\n");
    return 1;
  } catch (const std::exception& error) {
    fmt::print(stderr, "resnet50: error: {}\n", error.what());
    return 1;
  }
}
