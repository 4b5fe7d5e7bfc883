// From a picture to a network's input: what of it is shown, at which size, and as which numbers.
// The names and the arithmetic are torchvision's, on Pillow's pictures.
#pragma once
#include <array>

#include "quern/nn/image.h"
#include "quern/tensor/random.h"

namespace quern {

/// `image`, u8 [H, W, 3], at another size: u8 [height, width, 3]. Bilinear, and antialiased: where
/// the picture gets smaller, a pixel is a weighted mean of all that it covers. Same bits as
/// Pillow's resize((width, height), BILINEAR) where that goes along rows first, as it did before
/// version 13; else no value differs by more than 1.
/// Errors: another dtype or shape; an empty picture or size.
Tensor resize_image(const Tensor& image, int64_t height, int64_t width);

/// A look at a picture: `crop` of it, resized to height × width, and `window` of that, mirrored
/// where `flip`.
struct ImageView {
  ImageBox crop;                  ///< of the picture
  int64_t height = 0, width = 0;  ///< that the crop is resized to
  ImageBox window;                ///< of the resized crop
  bool flip = false;              ///< left and right change places
};

/// torchvision's Resize(resize) and CenterCrop(size): all of the picture, its short side at
/// `resize` pixels, and the size×size pixels in the middle. Error: resize < size.
ImageView resized_center(int64_t height, int64_t width, int64_t resize, int64_t size);

/// torchvision's, by its values.
struct RandomResizedCropOptions {
  double min_scale = 0.08, max_scale = 1;           ///< share of the picture's area
  double min_ratio = 3.0 / 4, max_ratio = 4.0 / 3;  ///< width by height
  double flip = 0.5;                                ///< how likely it is mirrored
};
/// torchvision's RandomResizedCrop and RandomHorizontalFlip: a part of the picture of random size,
/// shape and place, or the middle of it if ten tries do not fit, at size×size pixels.
ImageView random_resized_crop(int64_t height, int64_t width, int64_t size, RandomStream& random,
                              const RandomResizedCropOptions& options = {});

/// u8 [window.height, window.width, 3]. Decodes what the view shows and no more. Same bits as
/// resize_image of the crop, unless the crop is at least 6 times as large, both ways, as it is
/// shown: then from a picture that the decoder has made smaller (ImageDecoder::decode), by as much
/// as leaves it 3 times as large, and values differ by 0.4 on average, by 2 or 3 here and there.
/// Errors: those of decode(); a crop or window that reaches out of what it is taken from.
Tensor decode_view(const ImageDecoder& picture, const ImageView& view);

/// What each channel's values, of 0..1, are shifted and scaled by.
struct ImageNorm {
  std::array<float, 3> mean{0.485f, 0.456f, 0.406f}, std{0.229f, 0.224f, 0.225f};  ///< ImageNet's
};
/// out = (image / 255 - mean) / std, in torchvision's ToTensor and Normalize's arithmetic and bits.
/// `image`: u8 [H, W, 3]; `out`: f32 [3, H, W], of any strides. Errors: other dtypes or shapes.
void normalize_image(const Tensor& out, const Tensor& image, const ImageNorm& norm = {});

}  // namespace quern
