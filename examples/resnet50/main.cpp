// resnet50 train, eval, infer and doctor: see options.cpp for what they take, train.cpp,
// evaluate.cpp, infer.cpp, pictures.cpp and doctor.cpp for what they do. Exit status: 0, 1 for a
// failure, 2 for a command line that makes no sense. A run that has files to write does so where
// standard output fails too, or its reader is gone; the status is 1.
#include <fmt/core.h>

#include <csignal>
#include <exception>
#include <new>

#include "console.h"
#include "data.h"
#include "doctor.h"
#include "evaluate.h"
#include "infer.h"
#include "options.h"
#include "output.h"
#include "pictures.h"
#include "quern/ops/float32_matmul_precision.h"
#include "quern/tensor/cpu_features.h"
#include "quern/tensor/parallel.h"
#include "train.h"

using namespace resnet50;

int main(int argc, char** argv) {
  occupy_standard_streams();
  Options options = parse_options(argc, argv);
  try {
    check_outputs(options);
    if (options.writes_files()) std::signal(SIGPIPE, SIG_IGN);  // else nobody is left to work for
    if (options.threads > 0) quern::set_num_threads(options.threads);
    if (!options.matmul_precision.empty())
      quern::set_float32_matmul_precision(options.matmul_precision);
    if (options.amp && !quern::has_bf16_arithmetic())
      print_error(fmt::format("warning: --amp: {} has no fast bf16 arithmetic: slower than f32",
                              quern::to_string(quern::max_isa())));
    if (options.mode == Mode::doctor) diagnose(options);
    else if (options.mode == Mode::infer && !options.pictures.empty()) infer_pictures(options);
    else if (options.mode == Mode::infer) infer(options);
    else {
      Data data = open_data(options);
      if (options.mode == Mode::eval) evaluate(options, *data.evaluation);
      else train(options, data);
    }
    return all_printed() ? 0 : 1;
  } catch (const std::bad_alloc&) {
    print_error("error: [memory] expected more of it: the system has no more");
  } catch (const std::exception& error) {
    print_error(fmt::format("error: {}", error.what()));
  }
  return 1;
}
