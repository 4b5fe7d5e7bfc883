// What training does to pictures beside cropping and mirroring them.
#pragma once
#include "quern/tensor/random.h"

namespace quern {

/// torchvision's RandomErasing: with this probability, fills a rectangle of `image`, floating
/// [3, H, W] of any strides, with 0: 2 to 33% of its area, of ratio 0.3 to 3.3, anywhere. Nothing
/// if ten tries do not fit. Errors: another dtype or shape.
void random_erase_(const Tensor& image, double probability, RandomStream& random);

/// How two pictures become one: `share` of the first one's label, the rest of the second one's.
struct ImageMix {
  double share = 1;                                  ///< 0..1
  int64_t top = 0, left = 0, height = 0, width = 0;  ///< of CutMix: the second one's rectangle
};
/// torchvision's MixUp (and CutMix): share is of Beta(alpha, alpha); CutMix's rectangle lies
/// anywhere, cut at the edges, and the share is what it leaves.
/// Error: alpha is not in 0..1000, or 0.
ImageMix random_mixup(double alpha, RandomStream& random);
/// The same of CutMix, of pictures of that size.
ImageMix random_cutmix(double alpha, int64_t height, int64_t width, RandomStream& random);

/// Each of `images`, floating [N, 3, H, W], with the one before it, the first with the last: a new
/// tensor of the same format. Labels mix likewise.
Tensor mix_images(const Tensor& images, const ImageMix& mix);

/// The changes that torchvision's TrivialAugmentWide picks from, as Pillow makes them.
enum class ImageOp : uint8_t {
  identity,
  shear_x,        ///< pixel (x, y) is taken from (x + magnitude·y, y); black where there is none
  shear_y,        ///< from (x, y + magnitude·x)
  translate_x,    ///< to the right, by whole pixels
  translate_y,    ///< down
  rotate,         ///< about the middle, against the clock, in degrees
  brightness,     ///< away from black by 1 + magnitude
  color,          ///< away from grey
  contrast,       ///< away from the mean of grey
  sharpness,      ///< away from the picture smoothed
  posterize,      ///< keeps so many bits
  solarize,       ///< 255 - value from the magnitude on
  auto_contrast,  ///< of each channel: stretched to 0..255
  equalize        ///< of each channel: the histogram made flat
};
inline constexpr int kImageOps = 14;  ///< how many they are

/// u8 [H, W, 3] to a new one. Errors: another dtype or shape; an empty picture; a magnitude beyond
/// -1000..1000, for posterize beyond 0..8.
Tensor augment_image(const Tensor& image, ImageOp op, double magnitude);

/// Müller and Hutter, "TrivialAugment", ICCV'21, in its wide form: one of the changes, of one of 31
/// strengths and either sign, all equally likely.
Tensor trivial_augment_wide(const Tensor& image, RandomStream& random);

}  // namespace quern
