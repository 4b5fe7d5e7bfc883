// Outputs that bypass the caches (blocking.h) are those that do not: many images at once against
// one after the other, whose outputs are too small for it. Data are small integers: sums are exact.
#include <doctest/doctest.h>

#include <cmath>
#include <utility>
#include <vector>

#include "conv_cases.h"
#include "quern/ops/kernels/blocking.h"
#include "quern/ops/kernels/work.h"
#include "quern/tensor/dtype.h"

using namespace quern;
using namespace quern::kernels;
using namespace quern::test;
using Kind = Epilogue::Kind;

namespace {

/// So many items, -3 ... 3.
Tensor integers_of(DType dtype, int64_t items, uint32_t state) {
  Tensor all = empty({items}, dtype);
  visit_dtype(dtype, [&]<class T>(std::type_identity<T>) {
    T* const out = all.out<T>();
    for (int64_t i = 0; i < items; ++i) {
      state = state * 1664525u + 1013904223u;
      out[i] = static_cast<T>(static_cast<double>((state >> 16) * 7 >> 16) - 3);
    }
  });
  return all;
}

/// What follows a sum.
struct After {
  Kind kind;
  bool residual = false;
};

/// A convolution of many images: x or dy goes in, y or dx comes out.
class Layer {
 public:
  Layer(const Case& c, DType dtype, ConvPass pass, After after)
      : one_(c.problem(dtype, MemoryFormat::channels_last)), pass_(pass), after_(after) {
    one_.sums = after.kind == Kind::moments || after.kind == Kind::gradient;
    images_ = cache::read_at_once() / (items(pass != ConvPass::forward) * item()) + 1;
    from_ = integers_of(dtype, images_ * items(pass == ConvPass::forward), 1);
    with_ = integers_of(dtype, images_ * items(pass != ConvPass::forward), 2);
    weight_ = integers_of(dtype, one_.oc * one_.ic / one_.groups * one_.kh * one_.kw, 3);
    for (Tensor& channels : of_channels_) channels = integers_of(DType::f32, one_.ic + one_.oc, 4);
  }

  void check(const ConvKernel& engine) const {
    const int64_t bytes = items(!forward()) * item();
    const Tensor at_once = empty({images_ * items(!forward())}, one_.dtype);
    const Tensor by_image = empty(at_once.shape(), one_.dtype);
    const int64_t pitch = (forward() ? one_.oc : one_.ic) * item();
    CHECK_EQ(cache::bypassed(at_once.data_ptr(), images_ * bytes, pitch, cache::read_at_once()),
             pitch % cache::kLine == 0);
    CHECK(!cache::bypassed(by_image.data_ptr(), bytes, pitch, cache::read_by_products()));

    run(engine, images_, 0, at_once);
    for (int64_t i = 0; i < images_; ++i) run(engine, 1, i, by_image);
    check_equal(engine, at_once, by_image);
  }

  /// Of dgrad that is done with wgrad: dx, and dw, which is the sum of the images'.
  void check_both(const ConvKernel& engine) const {
    const Tensor at_once = empty({images_ * items(true)}, one_.dtype);
    const Tensor by_image = empty(at_once.shape(), one_.dtype);
    const std::vector<float> dw = run(engine, images_, 0, at_once, true);
    std::vector<float> sums(dw.size());
    for (int64_t i = 0; i < images_; ++i) {
      const std::vector<float> of_image = run(engine, 1, i, by_image, true);
      for (size_t k = 0; k < sums.size(); ++k) sums[k] += of_image[k];
    }
    check_equal(engine, at_once, by_image);
    CHECK(dw == sums);
  }

 private:
  void check_equal(const ConvKernel& engine, const Tensor& at_once, const Tensor& by_image) const {
    visit_dtype(one_.dtype, [&]<class T>(std::type_identity<T>) {
      const T *a = at_once.data<T>(), *b = by_image.data<T>();
      const double most = tolerance(engine);
      int64_t wrong = 0;
      for (int64_t i = 0; i < images_ * items(!forward()); ++i)
        wrong += !(std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])) <= most);
      CHECK(wrong == 0);
    });
  }

  bool forward() const { return pass_ == ConvPass::forward; }
  int64_t item() const { return itemsize(one_.dtype); }
  /// Of an image, of x or y.
  int64_t items(bool of_x) const {
    return of_x ? one_.ic * one_.ih * one_.iw : one_.oc * one_.oh * one_.ow;
  }

  /// Returns dw, if both gradients are asked for.
  std::vector<float> run(const ConvKernel& engine, int64_t images, int64_t first, const Tensor& out,
                         bool both = false) const {
    ConvProblem p = one_;
    p.n = images;
    const auto plan = plan_conv({p, pass_, &engine, &select_gemm_kernel(p.dtype)});
    const Workspace packed(plan->packed_bytes());
    plan->pack(weight_.data_ptr(), p.dtype, packed.as<void>());
    const auto at = [&](const Tensor& all, bool of_x) {
      return static_cast<char*>(all.out_ptr()) + first * items(of_x) * item();
    };
    const Workspace sums(2 * (p.ic + p.oc) * int64_t{sizeof(double)});
    const void* with = at(with_, !forward());
    Epilogue epilogue{
        .kind = after_.kind,
        .activation = Activation::relu6,
        .map = {of_channels_[0].data_ptr(), of_channels_[1].data_ptr(), of_channels_[2].data_ptr()},
        .residual = after_.residual && !both ? with : nullptr,
        .x = after_.kind == Kind::gradient ? with : nullptr,
        .first = p.sums ? sums.as<double>() : nullptr,
        .second = p.sums ? sums.as<double>() + p.ic + p.oc : nullptr};
    std::vector<float> dw(static_cast<size_t>(both ? weight_.numel() : 0));
    if (both)
      plan->run_both(at(from_, false), packed.as<void>(), at(out, true), dw.data(), epilogue);
    else plan->run(at(from_, forward()), packed.as<void>(), at(out, !forward()), epilogue);
    return dw;
  }

  ConvProblem one_;
  ConvPass pass_;
  After after_;
  int64_t images_;
  Tensor from_, with_, weight_, of_channels_[3];
};

}  // namespace

TEST_CASE("What is stored past the caches is what is stored through them" *
          doctest::skip(kEmulatedCpu)) {
  const Case pixelwise{.n = 1, .groups = 1, .ic = 64, .oc = 64, .size = {28, 28}, .kernel = {1, 1}};
  Case windows = pixelwise, depthwise, grouped;
  windows.kernel = {3, 3}, windows.pad = {1, 1};
  depthwise = grouped = windows;
  depthwise.groups = 64, grouped.groups = 16;
  Case strided = depthwise;
  strided.stride = {2, 2};
  // Every other pixel of dx begins a line, of f32 and of bf16; the others lie between two.
  Case between = pixelwise, between_bf16;
  between.ic = 40, between.kernel = between.stride = {2, 2};
  between_bf16 = between;
  between_bf16.ic = 48;
  int64_t ran = 0;
  for (const Case& c : {pixelwise, windows, depthwise, grouped, strided, between, between_bf16})
    for (DType dtype : {DType::f32, DType::bf16})
      for (const auto& [pass, after] : {std::pair{ConvPass::forward, After{Kind::store}},
                                        {ConvPass::forward, {Kind::activate}},
                                        {ConvPass::forward, {Kind::activate, true}},
                                        {ConvPass::forward, {Kind::moments}},
                                        {ConvPass::dgrad, {Kind::store}},
                                        {ConvPass::dgrad, {Kind::gradient, true}}}) {
        if (after.kind != Kind::store && (c.groups == 16 || c.stride.h == 2)) continue;
        const Layer layer(c, dtype, pass, after);
        const ConvProblem p = c.problem(dtype, MemoryFormat::channels_last);
        CAPTURE(p.to_string());
        CAPTURE(p.dtype);
        CAPTURE(static_cast<int>(after.kind));
        for (const ConvKernel* engine : engines(p, pass, select_gemm_kernel(dtype))) {
          CAPTURE(std::string(engine->name));
          layer.check(*engine);
          if (after.kind == Kind::gradient && std::string_view(engine->name) == "depthwise")
            layer.check_both(*engine);
          ++ran;
        }
      }
  CHECK(ran >= 50);
}
