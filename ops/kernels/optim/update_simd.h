// The f32 updates on vectors of xsimd, once an instruction set. A pass streams 20 bytes an element
// (SGD with momentum) or 28 (AdamW) against a handful of operations: memory is the bound, so
// nothing is unrolled.
#pragma once
#include <cstdint>

#include "quern/ops/kernels/simd.h"

namespace quern::kernels {
namespace {

template <class V>
V constant(double x) {
  return V(static_cast<float>(x));
}
inline Vec<float> magnitude(Vec<float> x) { return xsimd::abs(x); }
/// b where it is NaN.
inline Vec<float> larger(Vec<float> a, Vec<float> b) { return xsimd::select(a > b, a, b); }
inline Vec<float> smaller(Vec<float> a, Vec<float> b) { return xsimd::select(a < b, a, b); }
inline Vec<float> where_positive(Vec<float> x, Vec<float> yes, Vec<float> no) {
  return xsimd::select(x > Vec<float>(0.0f), yes, no);
}

}  // namespace
}  // namespace quern::kernels

#include "quern/ops/kernels/optim/formulas.h"

namespace quern::kernels {
namespace {

template <class Step>
void run(const Step& step, const UpdateSpan& span) {
  const Step o = step;  // no store changes a copy: its constants stay in registers
  const int states = states_of(o);
  float* param = static_cast<float*>(span.param);
  const float* grad = static_cast<const float*>(span.grad);
  float* first = static_cast<float*>(span.state[0]);
  float* second = static_cast<float*>(span.state[1]);
  each_vector<float>(span.n, [&](int64_t i, int, auto lanes) {
    Vec<float> p = lanes.load(param + i), a(0.0f), b(0.0f);
    if (states > 0) a = lanes.load(first + i);
    if (states > 1) b = lanes.load(second + i);
    update(o, p, lanes.load(grad + i), a, b);
    lanes.store(param + i, p);
    if (states > 0) lanes.store(first + i, a);
    if (states > 1) lanes.store(second + i, b);
  });
}

}  // namespace

#define QUERN_TYPES(Step, family)                               \
  {                                                             \
    { QUERN_NAMED(family "_f32"), kIsa, DType::f32, run<Step> } \
  }
QUERN_FORMULAS(QUERN_TYPES)

}  // namespace quern::kernels
