// A step of training in which memory ends at the n-th request, for all n: an exception, whatever
// the step had to change is as before or as after it, nothing is leaked, and the step can be done
// again, with the same bits.
#include <doctest/doctest.h>

#include <memory>
#include <new>
#include <string>
#include <utility>

#include "faults.h"
#include "gradcheck_helper.h"
#include "quern/autograd/grad_mode.h"
#include "quern/nn/nn.h"
#include "quern/nn/residual.h"
#include "quern/ops/activation.h"
#include "quern/ops/adaptive_avg_pool2d.h"
#include "quern/ops/autocast.h"
#include "quern/ops/binary.h"
#include "quern/ops/flatten.h"
#include "quern/ops/loss.h"
#include "quern/ops/max_pool2d.h"
#include "quern/ops/pack_cache.h"
#include "quern/optim/adamw.h"
#include "quern/optim/clip_grad.h"
#include "quern/optim/sgd.h"
#include "quern/tensor/random.h"
#include "tensor/threads.h"

using namespace quern;
using test::Fault, test::live_blocks, test::same_bits, test::Threads;

namespace {

/// A stem, a pool, a block with a projection and a head. Activations are larger than the blocks
/// that the allocator takes from operator new.
struct Net : nn::Module {
  nn::Conv2d& conv = register_module("conv", nn::Conv2d(3, 8, 3, {.padding = 1, .bias = false}));
  nn::BatchNorm2d& norm = register_module("norm", nn::BatchNorm2d(8));
  nn::Conv2d& conv1 = register_module("conv1", nn::Conv2d(8, 8, 3, {.padding = 1, .bias = false}));
  nn::BatchNorm2d& norm1 = register_module("norm1", nn::BatchNorm2d(8));
  nn::Conv2d& conv2 = register_module("conv2", nn::Conv2d(8, 16, 1, {.bias = false}));
  nn::BatchNorm2d& norm2 = register_module("norm2", nn::BatchNorm2d(16));
  nn::Conv2d& side = register_module("side", nn::Conv2d(8, 16, 1, {.bias = false}));
  nn::BatchNorm2d& side_norm = register_module("side_norm", nn::BatchNorm2d(16));
  nn::Linear& head = register_module("head", nn::Linear(16, 5));
  nn::Residual stem{.branch = {{&conv, &norm}}, .shortcut = false};
  nn::Residual block{.branch = {{&conv1, &norm1}, {&conv2, &norm2}},
                     .projection = nn::ConvNorm{&side, &side_norm}};

  explicit Net(bool fuse) { stem.fuse = block.fuse = fuse; }
  Tensor forward(const Tensor& x) override {
    return head(flatten(adaptive_avg_pool2d(block(max_pool2d(stem(x), 2)), 1), 1));
  }
};

struct Kind {
  bool fuse, adamw, autocast;
  int threads;
};

class Training {
 public:
  explicit Training(const Kind& kind) : kind_(kind), net_(kind.fuse) {
    if (kind.adamw) optimizer_ = std::make_unique<optim::AdamW>(net_.parameters());
    else
      optimizer_ = std::make_unique<optim::SGD>(
          net_.parameters(), optim::SGDOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 1e-4});
  }
  void step() {
    optimizer_->zero_grad();
    {
      const AutocastGuard autocast(kind_.autocast);
      cross_entropy(net_(x_), target_).backward();
    }
    optim::clip_grad_norm_(net_.parameters(), 1);
    optimizer_->step();
  }
  void let_go() { optimizer_->zero_grad(); }
  Tensor infer() {
    net_.eval();
    const NoGradGuard no_grad;
    const AutocastGuard autocast(kind_.autocast);
    return net_(x_);
  }

  /// All that a step changes.
  struct State {
    TensorDict net;
    TensorDict optimizer;
  };
  State state() const {
    State now{{}, optimizer_->state_dict()};
    for (const auto& [name, tensor] : net_.state_dict()) now.net.insert(name, raw::clone(tensor));
    return now;
  }
  void restore(const State& state) {
    net_.load_state_dict(state.net);
    optimizer_->load_state_dict(state.optimizer);
  }

 private:
  Kind kind_;
  Net net_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  Tensor x_ = raw::contiguous(randn({4, 3, 24, 24}), MemoryFormat::channels_last);
  Tensor target_ = randint(0, 5, {4});
};

bool trained(const std::string& name) {
  return name.find("running") == std::string::npos && name.find("batches") == std::string::npos;
}

/// Do they agree in what the optimizer changes?
bool same_weights(const Training::State& a, const Training::State& b) {
  for (const auto& [name, tensor] : a.net)
    if (trained(name) && !same_bits(tensor, b.net.at(name))) return false;
  for (const auto& [name, tensor] : a.optimizer)
    if (!same_bits(tensor, b.optimizer.at(name))) return false;
  return true;
}
/// In the statistics of this batch norm?
bool same_statistics(const Training::State& a, const Training::State& b, const std::string& norm) {
  for (const char* name : {".running_mean", ".running_var", ".num_batches_tracked"})
    if (!same_bits(a.net.at(norm + name), b.net.at(norm + name))) return false;
  return true;
}
constexpr const char* kNorms[] = {"norm", "norm1", "norm2", "side_norm"};

constexpr Kind kKinds[] = {{true, false, false, 1},
                           {true, true, true, 2},
                           {false, true, false, 2},
                           {false, false, true, 1}};

/// What is held once caches, which come and go as they like, are empty.
struct Held {
  int64_t storages, blocks;
  static Held now() {
    clear_pack_cache();
    empty_cache();
    return {memory_stats().in_use, live_blocks()};
  }
  bool operator==(const Held&) const = default;
};

/// Runs f where memory ends at the n-th request. Did it go through, with fewer?
template <class F>
bool survives(int64_t n, bool lasting, F f) {
  const Fault fault(n, lasting);
  try {
    f();
  } catch (const std::bad_alloc&) {
    return false;
  } catch (const Error&) {
    return false;
  }
  return fault.requests() < n;
}

}  // namespace

TEST_CASE("memory ends at any point of a step of training") {
  for (const Kind& kind : kKinds) {
    CAPTURE(kind.fuse);
    CAPTURE(kind.adamw);
    CAPTURE(kind.autocast);
    const Threads threads(kind.threads);
    manual_seed(7);
    Training training(kind);
    training.step();  // the optimizer has its state, autocast its copies
    const Training::State before = training.state();
    training.step();
    const Training::State after = training.state();
    training.restore(before);
    training.let_go();
    const Held held = Held::now();

    for (const bool lasting : {false, true}) {
      CAPTURE(lasting);
      for (int64_t n = 1; !survives(n, lasting, [&] { training.step(); }); ++n) {
        CAPTURE(n);
        {
          const Training::State now = training.state();
          CHECK((same_weights(now, before) || same_weights(now, after)));
          for (const char* norm : kNorms)
            CHECK((same_statistics(now, before, norm) || same_statistics(now, after, norm)));
        }
        training.restore(before);
        training.step();
        {
          const Training::State now = training.state();
          CHECK(same_weights(now, after));
          for (const char* norm : kNorms) CHECK(same_statistics(now, after, norm));
        }
        training.restore(before);
        training.let_go();
        CHECK((Held::now() == held));
      }
      training.restore(before);
    }
  }
}

TEST_CASE("memory ends at any point of inference") {
  for (const Kind& kind : kKinds) {
    CAPTURE(kind.fuse);
    CAPTURE(kind.autocast);
    const Threads threads(kind.threads);
    Training training(kind);
    const Tensor expected = training.infer();
    for (const bool lasting : {false, true}) {
      CAPTURE(lasting);
      for (auto [n, undisturbed] = std::pair(int64_t{1}, false); !undisturbed; ++n) {
        CAPTURE(n);
        const Held held = Held::now();
        undisturbed = survives(n, lasting, [&] { training.infer(); });
        CHECK(same_bits(training.infer(), expected));  // also with what the caches have kept of it
        set_pack_cache_limits(0, 0);
        set_pack_cache_limits(512, int64_t{1} << 30);
        CHECK(pack_cache_stats().bytes == 0);
        CHECK((Held::now() == held));
      }
    }
  }
}

TEST_CASE("a graph is destroyed where no memory is left") {
  const Tensor x = ones({2}).requires_grad_();
  Tensor y = x;
  for (int i = 0; i < 1000; ++i)
    y = add(mul(y, y), mul(x, 0.5));  // wide enough, and y has two consumers
  const Tensor large = ones({1 << 16});
  Tensor slices[4];
  for (Tensor& slice : slices) slice = raw::clone(large);
  const Fault fault(1, true);
  y = Tensor();
  for (Tensor& slice : slices) slice = Tensor();
  CHECK(fault.requests() == 0);
}
