#include "quern/nn/image_augment.h"

#include <algorithm>
#include <cmath>

#include "quern/autograd/grad_mode.h"
#include "quern/ops/binary.h"
#include "quern/tensor/raw.h"

namespace quern {
namespace {

constexpr double kPi = 3.14159265358979323846;

/// Marsaglia and Tsang, "A simple method for generating gamma variables", TOMS 2000; less than 1 by
/// a power of a uniform number.
double random_gamma(double shape, RandomStream& random) {
  const double boost = shape < 1 ? std::pow(random.uniform(0, 1), 1 / shape) : 1;
  const double d = (shape < 1 ? shape + 1 : shape) - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  while (true) {
    const double radius = std::sqrt(-2 * std::log(1 - random.uniform(0, 1)));
    const double x = radius * std::cos(2 * kPi * random.uniform(0, 1));
    const double v = std::pow(1 + c * x, 3);
    if (v > 0 && std::log(1 - random.uniform(0, 1)) < 0.5 * x * x + d - d * v + d * std::log(v))
      return boost * d * v;
  }
}

double random_share(std::string_view op, double alpha, RandomStream& random) {
  check(alpha > 0 && alpha <= 1000, op, "alpha: expected more than 0 and at most 1000, got {}",
        alpha);
  const double a = random_gamma(alpha, random), b = random_gamma(alpha, random);
  return a + b > 0 ? a / (a + b) : random.below(2) == 0 ? 0 : 1;  // both underflow: an end
}

Tensor window(const Tensor& images, int64_t rows, int64_t columns, const ImageMix& mix) {
  return raw::slice(raw::slice(images, rows, mix.top, mix.top + mix.height), columns, mix.left,
                    mix.left + mix.width);
}

}  // namespace

void random_erase_(const Tensor& image, double probability, RandomStream& random) {
  check(is_floating(image.dtype()) && image.dim() == 3 && image.size(0) == 3, "random_erase_",
        "image: expected floating [3,H,W], got {}", image.describe());
  if (random.uniform(0, 1) >= probability) return;
  const int64_t height = image.size(1), width = image.size(2);
  const auto area = static_cast<double>(height * width);
  for (int tries = 0; tries < 10; ++tries) {
    const double erased = area * random.uniform(0.02, 0.33);
    const double ratio = std::exp(random.uniform(std::log(0.3), std::log(3.3)));
    ImageMix box;
    box.height = std::llrint(std::sqrt(erased * ratio)),
    box.width = std::llrint(std::sqrt(erased / ratio));
    if (box.height >= height || box.width >= width) continue;
    box.top = random.below(height - box.height + 1), box.left = random.below(width - box.width + 1);
    if (box.height > 0 && box.width > 0) raw::fill_(window(image, 1, 2, box), 0);
    return;
  }
}

ImageMix random_mixup(double alpha, RandomStream& random) {
  return {.share = random_share("random_mixup", alpha, random)};
}

ImageMix random_cutmix(double alpha, int64_t height, int64_t width, RandomStream& random) {
  const double half = 0.5 * std::sqrt(1 - random_share("random_cutmix", alpha, random));
  const int64_t x = random.below(width), y = random.below(height);
  const auto reach_x = static_cast<int64_t>(half * static_cast<double>(width));
  const auto reach_y = static_cast<int64_t>(half * static_cast<double>(height));
  ImageMix mix;
  mix.top = std::max<int64_t>(y - reach_y, 0), mix.height = std::min(y + reach_y, height) - mix.top;
  mix.left = std::max<int64_t>(x - reach_x, 0), mix.width = std::min(x + reach_x, width) - mix.left;
  mix.share = 1 - static_cast<double>(mix.height * mix.width) / static_cast<double>(height * width);
  return mix;
}

Tensor mix_images(const Tensor& images, const ImageMix& mix) {
  check(is_floating(images.dtype()) && images.dim() == 4 && images.size(0) > 0, "mix_images",
        "images: expected floating [N,C,H,W], not empty, got {}", images.describe());
  const int64_t n = images.size(0);
  const Tensor result = raw::clone(images);
  const NoGradGuard no_grad;
  for (int64_t i = 0; i < n; ++i) {
    const Tensor to = raw::select(result, 0, i),
                 from = raw::select(images, 0, i == 0 ? n - 1 : i - 1);
    if (mix.height > 0 && mix.width > 0) raw::copy_(window(to, 1, 2, mix), window(from, 1, 2, mix));
    else if (mix.height == 0 && mix.width == 0 && mix.share < 1)
      raw::copy_(to, to * mix.share + from * (1 - mix.share));
  }
  return result;
}

}  // namespace quern
