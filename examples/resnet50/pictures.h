#pragma once
#include "options.h"

namespace resnet50 {

/// Prints the five best classes of each of options.pictures, with their probabilities, and writes
/// them where --json asks. Classes are named by --labels, else by the weights, else by number. A
/// picture that cannot be read is named on standard error and costs no other its answer.
/// Errors: --labels with another number of lines than there are classes;
/// in the end, broken pictures.
void infer_pictures(const Options& options);

}  // namespace resnet50
