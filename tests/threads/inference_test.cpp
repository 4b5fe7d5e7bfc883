// Several threads of a user with one model: what they share are its weights, and the copies of
// these that are packed or of bf16.
#include <doctest/doctest.h>

#include <atomic>
#include <shared_mutex>

#include "gradcheck_helper.h"
#include "net.h"
#include "ops/precision_scope.h"
#include "quern/autograd/grad_mode.h"
#include "quern/nn/safetensors.h"
#include "quern/ops/autocast.h"
#include "quern/ops/conv2d.h"
#include "quern/ops/float32_matmul_precision.h"
#include "quern/ops/linear.h"
#include "quern/ops/pack_cache.h"
#include "temporary_folder.h"
#include "tensor/threads.h"
#include "together.h"

using namespace quern;
using quern::testing::TemporaryFolder;
using test::Net, test::images, test::same_bits, test::together;

namespace {

constexpr int kUsers = 4;

/// Logits of some images in each way that a user may ask for them: formats, f32 and bf16.
Tensors infer(Net& net) {
  const NoGradGuard no_grad;
  Tensors logits;
  for (const bool lower : {false, true})
    for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
      const AutocastGuard autocast(lower);
      logits.push_back(net(images(1, format)));
    }
  return logits;
}

bool same(const Tensors& a, const Tensors& b) {
  for (size_t i = 0; i < a.size(); ++i)
    if (!same_bits(a[i], b[i])) return false;
  return a.size() == b.size();
}

/// Of a model that nobody else has.
Tensors infer_alone(uint64_t seed, bool fuse) {
  Net net(seed, fuse);
  net.eval();
  return infer(net);
}

}  // namespace

TEST_CASE("threads infer with one model, whatever happens to the caches") {
  const test::Threads guard(2);
  for (const bool fuse : {true, false}) {
    CAPTURE(fuse);
    const Tensors expected = infer_alone(1, fuse);
    Net net(1, fuse);
    net.eval();
    clear_pack_cache();
    constexpr int kTurns = 40;
    std::atomic<int> same_as_alone = 0;
    together(kUsers + 1, [&](int i) {
      for (int turn = 0; turn < kTurns; ++turn) {
        if (i < kUsers) {
          same_as_alone += same(infer(net), expected);
          continue;
        }
        set_pack_cache_limits(turn % 3, 1 << 16);
        if (turn % 2 == 0) clear_pack_cache();
        else empty_cache();
        (void)memory_stats(), (void)pack_cache_stats();
      }
    });
    set_pack_cache_limits(512, int64_t{1} << 30);
    CHECK(same_as_alone == kUsers * kTurns);
  }
}

TEST_CASE("each op has one precision, while a thread changes it for all") {
  const test::Precision kept("highest");
  const NoGradGuard no_grad;
  const Tensor x = test::random({64, 96}, 1, DType::f32), w = test::random({48, 96}, 2, DType::f32);
  const Tensor image = test::random({1, 32, 9, 9}, 3, DType::f32, MemoryFormat::channels_last),
               filters = test::random({32, 32, 1, 1}, 4, DType::f32);
  static constexpr std::string_view kPrecisions[] = {"highest", "high", "medium"};
  Tensors products, images;
  for (const auto precision : kPrecisions) {
    set_float32_matmul_precision(precision);
    products.push_back(linear(x, w));
    images.push_back(conv2d(image, filters));
  }
  const auto is_one_of = [](const Tensor& t, const Tensors& all) {
    return std::ranges::any_of(all, [&](const Tensor& one) { return same_bits(t, one); });
  };
  std::atomic<int> right = 0, errors = 0;
  constexpr int kTurns = 60;
  together(kUsers, [&](int i) {
    for (size_t turn = 0; turn < kTurns; ++turn) {
      if (i > 0) {
        right += is_one_of(linear(x, w), products) && is_one_of(conv2d(image, filters), images);
        continue;
      }
      set_float32_matmul_precision(kPrecisions[turn % 3]);
      try {
        set_float32_matmul_precision("low");
      } catch (const Error&) {
        ++errors;
      }
    }
  });
  CHECK(right == (kUsers - 1) * kTurns);
  CHECK(errors == kTurns);
}

TEST_CASE("weights are loaded behind a lock between others' inferences") {
  for (const bool fuse : {true, false}) {
    CAPTURE(fuse);
    const Net sources[] = {Net(1), Net(2)};
    const TensorDict weights[] = {sources[0].state_dict(), sources[1].state_dict()};
    const Tensors expected[] = {infer_alone(1, fuse), infer_alone(2, fuse)};
    Net net(1, fuse);
    net.eval();
    std::shared_mutex lock;
    size_t loaded = 0;  // which of the two
    std::atomic<int> right = 0;
    constexpr int kTurns = 12;
    together(kUsers, [&](int i) {
      for (int turn = 0; turn < kTurns; ++turn) {
        if (i == 0) {
          const std::lock_guard writing(lock);
          loaded = 1 - loaded;
          net.load_state_dict(weights[loaded]);
        } else {
          const std::shared_lock reading(lock);
          right += same(infer(net), expected[loaded]);
        }
      }
    });
    CHECK(right == (kUsers - 1) * kTurns);
  }
}

// Floats are written here that others read: what these compute meanwhile is anybody's guess, but
// what they keep of it must not outlast the loading. Weights are large, so that it takes a while,
// and copies of them are made in its midst.
TEST_CASE(
    "unsynchronised: weights are loaded while others infer, and are the new ones from then on") {
  const test::Threads guard(2);
  struct Large : nn::Module {
    nn::Conv2d& conv =
        register_module("conv", nn::Conv2d(256, 256, 3, {.padding = 1, .bias = false}));
    nn::BatchNorm2d& norm = register_module("norm", nn::BatchNorm2d(256));
    nn::Linear& head = register_module("head", nn::Linear(4096, 128));
    nn::Residual stem{.branch = {{&conv, &norm}}};
    explicit Large(bool fuse) {
      stem.fuse = fuse;
      eval();
    }
    Tensor forward(const Tensor& x) override { return head(flatten(stem(x), 1)); }
  };
  const auto weights = [](uint64_t seed) {
    TensorDict dict;
    Generator generator(seed);
    for (const auto& [name, like] : Large(true).state_dict()) {
      const Tensor t = zeros_like(like);
      if (is_floating(t.dtype())) uniform_(t, 0.1, 0.2, generator);
      dict.insert(name, t);
    }
    return dict;
  };
  const Tensor x = test::random({1, 256, 4, 4}, 1, DType::f32, MemoryFormat::channels_last);
  const auto logits = [&](Large& net, bool lower) {
    const NoGradGuard no_grad;
    const AutocastGuard autocast(lower);
    return net(x);
  };
  const TensorDict sources[] = {weights(1), weights(2)};
  for (const bool fuse : {true, false})
    for (const bool lower : {false, true}) {
      CAPTURE(fuse);
      CAPTURE(lower);
      Tensor expected[2];
      for (size_t i = 0; i < 2; ++i) {
        Large alone(fuse);
        alone.load_state_dict(sources[i]);
        expected[i] = logits(alone, lower);
      }
      Large net(fuse);
      for (size_t round = 0; round < 20; ++round) {
        std::atomic<bool> loading = true;
        together(3, [&](int i) {
          if (i > 0) {
            while (loading) logits(net, lower);
            return;
          }
          net.load_state_dict(sources[round % 2]);
          loading = false;
        });
        CHECK(same_bits(logits(net, lower), expected[round % 2]));
      }
    }
}

TEST_CASE("threads save to one path and load from it") {
  const TemporaryFolder folder;
  const std::string path = folder / "weights.safetensors";
  const auto dict = [](double value) {
    return TensorDict{{"a", full({33, 7}, value)}, {"b", full({5000}, value)}};
  };
  save_safetensors(path, dict(0));
  std::atomic<int> whole = 0;
  constexpr int kTurns = 12;
  together(kUsers, [&](int i) {
    for (int turn = 0; turn < kTurns; ++turn) {
      if (i < 3) save_safetensors(path, dict(10 * i + turn));
      const TensorDict loaded = load_safetensors(path);
      const double value = loaded.at("a").to_vector<double>()[0];
      whole += same_bits(loaded.at("a"), full({33, 7}, value)) &&
               same_bits(loaded.at("b"), full({5000}, value));
    }
  });
  CHECK(whole == kUsers * kTurns);
  CHECK(folder.count() == 1);
}
