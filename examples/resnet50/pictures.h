#pragma once
#include "options.h"

namespace resnet50 {

/// Prints the five best classes of each of options.pictures, with their probabilities, and writes
/// them where --json asks. Classes are named by --labels, else by the weights, else by number.
/// Errors: those of decoding; --labels with another number of lines than there are classes.
void infer_pictures(const Options& options);

}  // namespace resnet50
