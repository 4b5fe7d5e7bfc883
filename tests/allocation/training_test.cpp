// What training asks of the system once it is warm, in a program that has done little else: what
// other tests leave behind changes how the page heap grows.
#include <doctest/doctest.h>

#include "quern/nn/loss.h"
#include "quern/nn/resnet.h"
#include "quern/ops/autocast.h"
#include "quern/optim/sgd.h"
#include "quern/tensor/parallel.h"
#include "quern/tensor/random.h"
#include "quern/tensor/storage.h"
#include "tensor/threads.h"

using namespace quern;

TEST_CASE("resnet: training takes no memory from the system once it is warm") {
  const test::Threads kept;
  for (int n : {1, 2})
    for (const bool amp : {false, true}) {
      CAPTURE(n);
      CAPTURE(amp);
      set_num_threads(n);
      empty_cache();
      nn::ResNet net(nn::ResNet::Block::bottleneck, {2, 2, 1, 1}, {.num_classes = 10});
      optim::SGD optimizer(net.parameters(), {.lr = 0.01, .momentum = 0.9});
      const Tensor x = randn({4, 3, 64, 64}), target = from_vector<int64_t>({1, 3, 5, 7});
      // The first step ends with the momentum that the second is the first to hold beside all else.
      constexpr int warm = 2;
      int quiet = 0;  // steps that took none
      for (int step = 0; step < 8; ++step) {
        const int64_t before = memory_stats().system_bytes;
        optimizer.zero_grad();
        const Tensor loss = [&] {
          const AutocastGuard autocast(amp);
          return nn::CrossEntropyLoss()(net(x), target);
        }();
        loss.backward();
        optimizer.step();
        if (step >= warm && memory_stats().system_bytes == before) ++quiet;
      }
      // Two threads take their scratch at once or in turn, as it happens: a later step may be the
      // first in which they take most of it at once. What is asked for anew every step is asked for
      // in each of them.
      CHECK(quiet >= (n == 1 ? 6 : 3));
    }
}
