// The gradient of the weight by micro-kernels that sum over pixels.
#pragma once
#include "quern/ops/kernels/conv/conv.h"

namespace quern::kernels {

/// Runs on outer products where the micro-kernel offers them (outer.cpp), else with operands
/// transposed (transposed.cpp).
std::unique_ptr<const ConvPlan> plan_wgrad(const ConvChoice& choice);

/// A plan of an engine that decides all when it is made for a choice, and runs as a copy that has
/// been told x, dy and the map of x.
template <class Engine>
class WgradPlan final : public ConvPlan {
 public:
  explicit WgradPlan(const ConvChoice& choice) : ConvPlan(choice), engine_(choice) {}

 private:
  void compute(const void* x, const void* dy, void* dw, const Epilogue&,
               const ChannelMap& map) const override {
    Engine engine = engine_;
    engine.x_ = x, engine.dy_ = dy, engine.map_ = map;
    engine.run(static_cast<typename Engine::Acc*>(dw));
  }
  Engine engine_;
};

}  // namespace quern::kernels
