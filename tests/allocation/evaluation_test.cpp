// Every operator new of this program is counted: what evaluation asks of the heap once it is warm.
// Small blocks of storages come from there too; memory_stats() tells of large ones.
#include <doctest/doctest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <thread>

#include "quern/autograd/grad_mode.h"
#include "quern/nn/resnet.h"
#include "quern/ops/autocast.h"
#include "quern/ops/float32_matmul_precision.h"
#include "quern/tensor/parallel.h"
#include "quern/tensor/random.h"
#include "quern/tensor/raw.h"
#include "quern/tensor/storage.h"
#include "tensor/threads.h"

namespace {

std::atomic<int64_t> news{0};

void* counted(void* block) {
  ++news;
  if (block == nullptr) throw std::bad_alloc();
  return block;
}

}  // namespace

// The other forms are defined by these.
void* operator new(size_t bytes) { return counted(std::malloc(bytes == 0 ? 1 : bytes)); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  const auto to = static_cast<size_t>(alignment);
  return counted(std::aligned_alloc(to, (bytes + to - 1) / to * to));
}
void operator delete(void* block) noexcept { std::free(block); }
void operator delete(void* block, size_t) noexcept { std::free(block); }
void operator delete(void* block, std::align_val_t) noexcept { std::free(block); }
void operator delete(void* block, size_t, std::align_val_t) noexcept { std::free(block); }

using namespace quern;

namespace {

struct Asked {
  int64_t news, system_bytes;
};
Asked asked() { return {news, memory_stats().system_bytes}; }

void check_warm_calls_ask_nothing(nn::ResNet& net, const Tensor& x) {
  // The first call keeps packed weights, for which it may take memory that its earlier ops had
  // freed. How much scratch threads hold at once depends on how they meet: where one held none
  // while the other did, a later call in which both do asks for it, and no call after that one.
  Asked before, after;
  for (int call = 0; call < 2; ++call) net(x);
  for (int trial = 0; trial < 10; ++trial) {
    before = asked();
    for (int call = 0; call < 2; ++call) net(x);
    after = asked();
    if (after.news == before.news && after.system_bytes == before.system_bytes) break;
  }
  CHECK(after.news == before.news);
  CHECK(after.system_bytes == before.system_bytes);
}

}  // namespace

TEST_CASE("this program counts what is asked of the heap") {
  const int64_t before = news;
  static int* volatile kept = new int;  // or the compiler leaves it out
  const int64_t after = news;
  CHECK(after == before + 1);
  delete kept;
  empty_cache();  // or what other cases have left is large enough
  const int64_t bytes = int64_t{64} << 20, start = memory_stats().system_bytes;
  const Workspace large(bytes);
  CHECK(memory_stats().system_bytes >= start + bytes);
}

TEST_CASE("tensors of one thread that another one frees soon ask for nothing") {
  std::atomic<int> made = 0, freed = 0;
  Tensor handed;
  std::thread maker([&] {
    for (int i = 0; i < 80; ++i) {
      handed = raw::slice(ones({3}), 0, 1, 3);
      ++made;
      while (freed <= i) std::this_thread::yield();
    }
  });
  int64_t warm = 0;
  for (int i = 0; i < 80; ++i) {
    while (made <= i) std::this_thread::yield();
    handed = {};
    if (i == 40) warm = news;
    ++freed;
  }
  maker.join();
  CHECK(news.load() == warm);
}

TEST_CASE("resnet: evaluation asks for nothing once it is warm") {
  const NoGradGuard no_grad;
  const test::Threads kept;
  for (const bool fuse : {true, false}) {
    nn::ResNet net(nn::ResNet::Block::bottleneck, {2, 1, 1, 1}, {.num_classes = 10, .fuse = fuse});
    net.eval();
    for (auto format : {MemoryFormat::channels_last, MemoryFormat::contiguous})
      for (const int n : {1, 2}) {
        CAPTURE(fuse);
        CAPTURE(to_string(format));
        CAPTURE(n);
        set_num_threads(n);
        const Tensor x = raw::contiguous(randn({2, 3, 33, 64}), format);
        check_warm_calls_ask_nothing(net, x);
        {
          const AutocastGuard autocast(true);
          check_warm_calls_ask_nothing(net, x);
        }
        set_float32_matmul_precision("medium");
        check_warm_calls_ask_nothing(net, x);
        set_float32_matmul_precision("highest");
      }
  }
}

TEST_CASE("resnet: evaluation in slabs of images asks for nothing once it is warm") {
  const NoGradGuard no_grad;
  nn::ResNet net(nn::ResNet::Block::bottleneck, {1, 1, 1, 1}, {.num_classes = 10});
  net.eval();
  // 16·192·208 values of the largest activation are 2.5 MB an image: four a slab.
  check_warm_calls_ask_nothing(
      net, raw::contiguous(randn({6, 3, 192, 208}), MemoryFormat::channels_last));
}
