// resnet50 doctor: what of this machine quern uses, what holds it back, and what to type.
#pragma once
#include "options.h"

namespace resnet50 {

void diagnose(const Options& options);

}  // namespace resnet50
