#include "price.h"

#include <fmt/core.h>

namespace resnet50 {

std::string Price::describe() const {
  return fmt::format(
      "at ${} an hour: ${:.4g} per million images, {:.4g} thousand images per dollar\n", per_hour,
      per_million_images(), thousand_images_per_dollar());
}

void Price::add_to(nlohmann::ordered_json& json) const {
  json["price_per_hour"] = per_hour;
  json["dollars_per_million_images"] = per_million_images();
  json["thousand_images_per_dollar"] = thousand_images_per_dollar();
}

}  // namespace resnet50
