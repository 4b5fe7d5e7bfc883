#include "quern/nn/by_slab.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <mutex>
#include <vector>

#include "quern/autograd/grad_mode.h"
#include "quern/nn/dropout.h"
#include "quern/nn/network.h"
#include "quern/ops/autocast.h"
#include "quern/tensor/cpu_features.h"
#include "quern/tensor/random.h"
#include "quern/tensor/raw.h"
#include "tensor/threads.h"

using namespace quern;

namespace {

/// At 128 values a pixel 8 MiB an image in f32: at an L2 of up to 8 MiB, four images a slab.
const Dims kImage{1, 128, 128};
constexpr int64_t kWidest = 128;

Tensor images(int64_t n) { return rand({n, kImage[0], kImage[1], kImage[2]}); }

/// What f of a slab was called with.
struct Calls {
  std::mutex mutex;
  std::vector<int64_t> sizes;

  void add(const Tensor& x) {
    const std::lock_guard lock(mutex);
    sizes.push_back(x.size(0));
  }
};

/// Each image's first values.
Tensor first_values(const Tensor& x) {
  return raw::clone(raw::slice(raw::slice(x, 3, 0, 5), 2, 0, 1));
}

}  // namespace

TEST_CASE("by_slab: every image once, results in their order, for any number of threads") {
  const test::Threads kept;
  const NoGradGuard no_grad;
  nn::Dropout network(0.5);
  network.eval();
  for (const int64_t n : {0, 1, 4, 5, 8, 11})
    for (const int threads : {1, 2, 5}) {
      CAPTURE(n);
      CAPTURE(threads);
      set_num_threads(threads);
      const Tensor x = images(n);
      Calls calls;
      const Tensor y = nn::by_slab(network, x, kWidest, [&](const Tensor& some) {
        calls.add(some);
        return first_values(some);
      });
      CHECK(y.to_vector<float>() == first_values(x).to_vector<float>());
      CHECK(std::ssize(calls.sizes) == std::max<int64_t>(1, (n + 3) / 4));
      CHECK(std::ranges::all_of(calls.sizes, [](int64_t size) { return size <= 4; }));
    }
}

TEST_CASE("by_slab: at once where history is recorded or a module trains") {
  const auto sizes = [](const nn::Module& network) {
    Calls calls;
    nn::by_slab(network, images(9), kWidest, [&](const Tensor& x) {
      calls.add(x);
      return first_values(x);
    });
    return calls.sizes;
  };
  nn::Dropout network(0.5);
  network.eval();
  CHECK(sizes(network) == std::vector<int64_t>{9});
  const NoGradGuard no_grad;
  CHECK(sizes(network).size() == 3);
  network.train();
  CHECK(sizes(network) == std::vector<int64_t>{9});
}

TEST_CASE("by_slab: twice as many images at a time where L3 does not hold the weights") {
  struct Heavy : nn::Module {
    Tensor weight = register_parameter("weight", empty({cache_sizes().l3 / 4 + 1}));
  };
  const test::Threads kept;
  const NoGradGuard no_grad;
  Heavy network;
  network.eval();
  const Tensor x = images(17);
  for (const auto& [threads, slabs] : {std::pair{1, 3}, {2, 3}, {3, 4}, {4, 5}, {16, 5}}) {
    CAPTURE(threads);
    set_num_threads(threads);
    Calls calls;
    const Tensor y = nn::by_slab(network, x, kWidest, [&](const Tensor& some) {
      calls.add(some);
      return first_values(some);
    });
    CHECK(std::ssize(calls.sizes) == slabs);
    CHECK(y.to_vector<float>() == first_values(x).to_vector<float>());
  }
}

TEST_CASE("by_slab: slabs see the caller's switches, and their threads keep their own") {
  const test::Threads kept(3);
  nn::Dropout network(0.5);
  network.eval();
  std::vector<bool> seen;
  std::mutex mutex;
  const Tensor x = images(40);
  const auto look = [&](const Tensor& some) {
    const std::lock_guard lock(mutex);
    seen.push_back(autocast_enabled() && !grad_enabled());
    return first_values(some);
  };
  {
    const NoGradGuard no_grad;
    const AutocastGuard autocast;
    nn::by_slab(network, x, 2 * kWidest, look);
  }
  CHECK(seen.size() == 10);
  CHECK(std::ranges::all_of(seen, [](bool as_called) { return as_called; }));
  std::vector<char> plain(8);
  parallel_for(
      8, [&](int64_t i) { plain[static_cast<size_t>(i)] = grad_enabled() && !autocast_enabled(); });
  CHECK(std::ranges::all_of(plain, [](char left) { return left != 0; }));
}

TEST_CASE("by_slab: the error of the first slab that has one comes to the caller") {
  const test::Threads kept(2);
  const NoGradGuard no_grad;
  nn::Dropout network(0.5);
  network.eval();
  const Tensor x = images(12);
  const auto fails = [](const Tensor& some) -> Tensor {
    fail("test", "slab: refused a slab of " + std::to_string(some.size(0)));
  };
  CHECK_THROWS_WITH_AS(nn::by_slab(network, x, kWidest, fails), "[test] slab: refused a slab of 4",
                       Error);
}

TEST_CASE("networks: a batch evaluated in slabs has the bits of its images by themselves") {
  const NoGradGuard no_grad;
  for (const std::string_view name : {"mobilenet_v2", "mobilenet_v3_large", "efficientnet_b0",
                                      "efficientnet_lite0", "convnext_tiny"}) {
    CAPTURE(std::string(name));
    const auto net = nn::network(name, {.num_classes = 10});
    net->eval();
    const Tensor x = raw::contiguous(rand({6, 3, 224, 224}), MemoryFormat::channels_last);
    std::vector<float> single;
    for (int64_t i = 0; i < x.size(0); ++i)
      for (float logit : (*net)(raw::slice(x, 0, i, i + 1)).to_vector<float>())
        single.push_back(logit);
    CHECK((*net)(x).to_vector<float>() == single);
  }
}
