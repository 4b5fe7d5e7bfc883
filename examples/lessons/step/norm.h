// Batch norm and relu of pixels, a channel at a time: what does not depend on how the pixels are
// passed over. Ioffe & Szegedy, "Batch normalization", ICML'15.
#pragma once
#include "pixels.h"

namespace quern::lessons::step {

/// Of conv → batch norm → relu → conv; and gradients of the same shapes.
struct Parameters {
  Tensor w1, weight, bias, w2;  // f32 [mid, in], [mid], [mid], [out, mid]
};

/// Mean and (biased) variance of each channel, f64.
struct Moments {
  Tensor mean, var;
};

struct Norm {
  Tensor invstd;                // f64 [channels]
  Tensor center, scale, shift;  // f32 [channels], of a ChannelMap

  Norm() = default;
  Norm(const Moments& m, const Parameters& p)
      : invstd(1 / sqrt(m.var + 1e-5)),
        center(to(m.mean, DType::f32)),
        scale(to(p.weight * invstd, DType::f32)),
        shift(p.bias) {}
  ChannelMap map() const {
    return {center.data<float>(), scale.data<float>(), shift.data<float>()};
  }
};

/// dy = scale·(dn - mean(dn) - (y - center)·invstd²·mean(dn·(y - center)))
///    = a·dn + b·(y - center) + c
struct NormGradient {
  Tensor a, b, c;  // f32 [channels]

  /// The two means are f64 [channels]. Gradients of weight and bias go to theirs.
  NormGradient(const Norm& norm, const Tensor& mean_dn, const Tensor& mean_product, int64_t pixels,
               Parameters& gradients)
      : a(norm.scale),
        b(to(-norm.scale * norm.invstd * norm.invstd * mean_product, DType::f32)),
        c(to(-norm.scale * mean_dn, DType::f32)) {
    const auto count = static_cast<double>(pixels);
    gradients.weight = to(mean_product * norm.invstd * count, DType::f32);
    gradients.bias = to(mean_dn * count, DType::f32);
  }
};

/// A pass: dz becomes dy.
inline void apply_gradient(const Norm& norm, const NormGradient& g, const Tensor& y,
                           const Tensor& dz) {
  const auto rows = read(y);
  read(dz);
  const auto to = write(dz);
  each_block(y, [&](const Block& block) {
    apply_gradient(rows(block), norm.map(), g.a.data<float>(), g.b.data<float>(), g.c.data<float>(),
                   to(block));
  });
}

}  // namespace quern::lessons::step
