// What EfficientNet-B0 and EfficientNet-Lite0 are made of (Tan and Le 2019, table 1).
#pragma once
#include <cstdint>

namespace quern::nn::efficientnet {

inline constexpr int64_t kStem = 32, kHead = 1280;  // channels

struct Stage {
  int64_t expansion, kernel, stride, outputs, depth;
};
inline constexpr Stage kStages[] = {{1, 3, 1, 16, 1}, {6, 3, 2, 24, 2},  {6, 5, 2, 40, 2},
                                    {6, 3, 2, 80, 3}, {6, 5, 1, 112, 3}, {6, 5, 2, 192, 4},
                                    {6, 3, 1, 320, 1}};

}  // namespace quern::nn::efficientnet
