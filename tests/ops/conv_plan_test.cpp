// Plans of convolutions are made once a problem and kept, and run what they were made for.
#include <doctest/doctest.h>

#include "precision_scope.h"
#include "quern/ops/detail/conv_problem.h"
#include "quern/tensor/cpu_features.h"

using namespace quern;
using kernels::ConvPass, kernels::ConvProblem;

namespace {

ConvProblem problem(int64_t images) {
  return detail::conv_problem({images, 32, 5, 5}, DType::f32, MemoryFormat::channels_last,
                              empty({16, 32, 1, 1}), 1, 0, 1, 1);
}

}  // namespace

TEST_CASE("A plan is kept, and another one made for all that it depends on") {
  const ConvProblem p = problem(1);
  const auto plan = detail::conv_plan(p, ConvPass::forward);
  CHECK(plan == detail::conv_plan(p, ConvPass::forward));
  CHECK(plan != detail::conv_plan(p, ConvPass::dgrad));
  for (auto change : {+[](ConvProblem& q) { q.n = 2; }, +[](ConvProblem& q) { q.maps = true; },
                      +[](ConvProblem& q) { q.sums = true; }, +[](ConvProblem& q) { q.x_gap = 1; },
                      +[](ConvProblem& q) { q.dtype = DType::f64; }}) {
    ConvProblem q = p;
    change(q);
    CHECK(plan != detail::conv_plan(q, ConvPass::forward));
  }
  {
    const test::Precision scope("medium", 8);
    CHECK(plan != detail::conv_plan(p, ConvPass::forward));
  }
  const Isa cap = isa_cap();
  set_isa_cap(Isa::portable);
  const auto capped = detail::conv_plan(p, ConvPass::forward);
  set_isa_cap(cap);
  CHECK((plan != capped || cap == Isa::portable));
  CHECK(plan == detail::conv_plan(p, ConvPass::forward));
}

TEST_CASE("Plans of more problems than are kept are made anew") {
  const auto plan = detail::conv_plan(problem(1), ConvPass::forward);
  for (int64_t n = 2; n < 1100; ++n) CHECK(detail::conv_plan(problem(n), ConvPass::forward));
  CHECK(plan != detail::conv_plan(problem(1), ConvPass::forward));
  CHECK(plan->packed_bytes() == detail::conv_plan(problem(1), ConvPass::forward)->packed_bytes());
}

TEST_CASE("A plan refuses a prologue and sums that it was not made for") {
  const auto plan = detail::conv_plan(problem(1), ConvPass::forward);
  const float scale = 1;
  double sum = 0;
  CHECK_THROWS_AS(plan->run(nullptr, nullptr, nullptr, {}, {.scale = &scale}), Error);
  CHECK_THROWS_AS(plan->run(nullptr, nullptr, nullptr, {.first = &sum, .second = &sum}), Error);
}
