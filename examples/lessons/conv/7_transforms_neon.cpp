// Step 7's transforms for this instruction set.
#include "7_transforms_simd.h"

namespace quern::lessons {
constinit const WinogradTransforms kTransformsNeon{.source = source, .output = output};
}  // namespace quern::lessons
