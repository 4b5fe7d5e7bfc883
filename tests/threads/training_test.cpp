// Several threads of a user at once, each with what is its own.
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <set>

#include "gradcheck_helper.h"
#include "net.h"
#include "quern/autograd/grad_mode.h"
#include "quern/ops/autocast.h"
#include "quern/ops/dropout.h"
#include "quern/ops/linear.h"
#include "quern/ops/loss.h"
#include "quern/optim/adamw.h"
#include "quern/optim/sgd.h"
#include "tensor/threads.h"
#include "together.h"

using namespace quern;
using test::Net, test::images, test::same_bits, test::together;

namespace {

constexpr int kUsers = 4;

/// What becomes of model `i` in some steps, which differ from model to model in all that a user may
/// choose.
TensorDict train(int i) {
  const auto seed = static_cast<uint64_t>(i);
  Net net(seed, i % 2 == 0);
  std::unique_ptr<optim::Optimizer> optimizer;
  if (i % 2 == 0)
    optimizer = std::make_unique<optim::SGD>(net.parameters(),
                                             optim::SGDOptions{.lr = 0.1, .momentum = 0.9});
  else optimizer = std::make_unique<optim::AdamW>(net.parameters());
  Generator generator(seed);
  for (uint64_t step = 0; step < 4; ++step) {
    const Tensor x =
        images(100 * seed + step, i == 1 ? MemoryFormat::contiguous : MemoryFormat::channels_last);
    const AutocastGuard autocast(i >= 2);
    optimizer->zero_grad();
    const Tensor logits = dropout(net(x), 0.2, true, generator);
    cross_entropy(logits, from_vector<int64_t>({0, 1, 2, 3})).backward();
    optimizer->step();
  }
  return net.state_dict();
}

bool same(const TensorDict& a, const TensorDict& b) {
  return std::ranges::all_of(
      a, [&](const auto& entry) { return same_bits(entry.second, b.at(entry.first)); });
}

}  // namespace

TEST_CASE("models trained at once become what each becomes alone") {
  std::vector<TensorDict> alone, at_once(kUsers);
  for (int i = 0; i < kUsers; ++i) alone.push_back(train(i));
  for (const int threads : {1, 3}) {
    CAPTURE(threads);
    const test::Threads guard(threads);
    together(kUsers, [&](int i) { at_once[static_cast<size_t>(i)] = train(i); });
    for (size_t i = 0; i < kUsers; ++i) CHECK(same(at_once[i], alone[i]));
  }
}

TEST_CASE("a graph made in one thread is differentiated in another") {
  Net net(1);
  const Tensor x = images(1);
  const auto loss = [&] { return cross_entropy(net(x), from_vector<int64_t>({0, 1, 2, 3})); };
  net.eval();
  loss().backward();
  Tensors expected;
  for (const Tensor& p : net.parameters()) expected.push_back(p.grad());
  net.zero_grad();
  const Tensor recorded = loss();
  together(1, [&](int) { recorded.backward(); });
  for (size_t i = 0; i < expected.size(); ++i)
    CHECK(same_bits(net.parameters()[i].grad(), expected[i]));
}

TEST_CASE("guards are their thread's own") {
  const NoGradGuard no_grad;
  const AutocastGuard autocast;
  std::vector<int> fresh(kUsers), inside(kUsers), after(kUsers);
  const auto modes = [] { return 2 * grad_enabled() + autocast_enabled(); };
  together(kUsers, [&](int i) {
    const auto at = static_cast<size_t>(i);
    fresh[at] = modes();
    {
      const GradMode grad(i % 2 == 0);
      const AutocastGuard cast(i >= 2);
      const Tensor x = ones({64, 64}).requires_grad_();
      for (int turn = 0; turn < 20; ++turn) {
        const Tensor y = linear(x, x);
        inside[at] += y.requires_grad() == (i % 2 == 0) && (y.dtype() == DType::bf16) == (i >= 2) &&
                      modes() == 2 * (i % 2 == 0) + (i >= 2);
      }
    }
    after[at] = modes();
  });
  CHECK(fresh == std::vector<int>(kUsers, 2));
  CHECK(inside == std::vector<int>(kUsers, 20));
  CHECK(after == fresh);
  CHECK(modes() == 1);
}

TEST_CASE("a number of threads that is refused changes nothing, whatever the others do") {
  const TensorDict alone = train(0);
  const test::Threads guard(3);
  std::vector<int> errors(kUsers);
  TensorDict beside;
  together(kUsers, [&](int i) {
    if (i == 0) beside = train(0);
    else
      for (int turn = 0; turn < 50; ++turn) try {
          set_num_threads(-turn);
        } catch (const Error&) {
          errors[static_cast<size_t>(i)] += num_threads() == 3;
        }
  });
  CHECK(errors == std::vector<int>{0, 50, 50, 50});
  CHECK(same(beside, alone));
}

TEST_CASE("threads that draw from one generator get each a stream of their own") {
  constexpr size_t kDraws = 16;
  using Draw = std::vector<float>;
  const auto draw = [] { return rand({8}).to_vector<float>(); };
  manual_seed(3);
  std::multiset<Draw> expected, drawn;
  for (size_t i = 0; i < kDraws * kUsers; ++i) expected.insert(draw());
  manual_seed(3);
  std::vector<std::vector<Draw>> draws(kUsers);
  together(kUsers, [&](int i) {
    for (size_t n = 0; n < kDraws; ++n) draws[static_cast<size_t>(i)].push_back(draw());
  });
  for (const auto& of_thread : draws) drawn.insert(of_thread.begin(), of_thread.end());
  CHECK(drawn == expected);
}
