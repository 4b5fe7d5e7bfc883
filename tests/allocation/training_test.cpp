// What training asks of the system once it is warm, in a program that has done little else: what other tests
// leave behind changes how the page heap grows.
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

TEST_CASE("resnet: training takes no memory from the system after the first step") {
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
      int64_t first = 0;
      for (int step = 0; step < 4; ++step) {
        optimizer.zero_grad();
        const Tensor loss = [&] {
          const AutocastGuard autocast(amp);
          return nn::CrossEntropyLoss()(net(x), target);
        }();
        loss.backward();
        optimizer.step();
        if (step == 0) first = memory_stats().system_bytes;
        // Threads take their small scratch at once or in turn, as it happens. All else comes in
        // huge pages.
        const int64_t grown = memory_stats().system_bytes - first;
        if (n == 1) CHECK(grown == 0);
        else CHECK(grown < int64_t{2} << 20);
      }
    }
}
