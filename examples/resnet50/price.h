// What images cost on a machine that is paid by the hour.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

namespace resnet50 {

struct Price {
  double per_hour;           // dollars
  double images_per_second;  // more than 0

  double per_million_images() const { return per_hour * 1e6 / (3600 * images_per_second); }
  double thousand_images_per_dollar() const { return 3.6 * images_per_second / per_hour; }

  /// "at $0.5 an hour: $2.73 per million images, 366 thousand images per dollar\n"
  std::string describe() const;
  void add_to(nlohmann::ordered_json& json) const;
};

}  // namespace resnet50
