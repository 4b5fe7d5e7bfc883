// quern_step: what a training step moves, keeps and takes, by the steps of this lesson.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <memory>

#include "2_prologue.h"
#include "3_library.h"
#include "clock.h"
#include "gemm/gemm.h"

using namespace quern;
using namespace quern::lessons;
using namespace quern::lessons::step;

namespace {

// ResNet-50's first stage: pictures of 56×56 pixels, 64 channels.
constexpr int64_t kSize = 56, kChannels = 64, kBlocks = 4;

/// Of variance 1/fan_in.
Tensor numbers(const Shape& shape, int64_t fan_in, uint64_t stream) {
  const Tensor t = empty(shape);
  fill_normal(t.out<float>(), t.numel(), 1, stream);
  return t / std::sqrt(static_cast<double>(fan_in));
}

/// A forward pass, which keeps something, and the backward pass that lets it go.
struct Passes {
  const char* name;
  std::function<void()> forward, backward;
};

template <class Step>
Passes passes_of(const char* name, const Tensor& x) {
  const Shape c{kChannels}, w{kChannels, kChannels};
  const Parameters p{numbers(w, kChannels, 1), ones(c), zeros(c), numbers(w, kChannels, 2)};
  const auto step = std::make_shared<Step>();
  return {name, [=] { step->forward(x, p); },
          [=] {
            Parameters gradients;
            step->backward(x, p, gradients);  // dout: any numbers
            *step = {};
          }};
}

/// Through residual blocks.
Passes passes_of(const char* name, Tensor (*block)(const Tensor&, const ResidualBlock&),
                 const Tensor& x) {
  const auto stage = [](uint64_t stream) {
    ConvStage s;
    s.weight = numbers({kChannels, kChannels, 1, 1}, kChannels, stream).requires_grad_();
    s.bn_weight = ones({kChannels}).requires_grad_();
    s.bn_bias = zeros({kChannels}).requires_grad_();
    return s;
  };
  std::vector<ResidualBlock> blocks;
  for (uint64_t i = 0; i < kBlocks; ++i) blocks.push_back({stage(2 * i), stage(2 * i + 1)});
  const auto y = std::make_shared<Tensor>();
  return {name,
          [=] {
            *y = x;
            for (const ResidualBlock& b : blocks) *y = block(*y, b);
          },
          [=] { y->backward(ones_like(*y)), *y = {}; }};
}

/// Bytes, without packed filters.
int64_t in_use() {
  clear_pack_cache();
  return memory_in_use();
}

/// In tensors of the size of x.
void print_bytes(const char* what, const std::vector<Passes>& all, const Tensor& x, bool counted) {
  const auto size = static_cast<double>(x.nbytes());
  const auto tensors = [&](int64_t bytes) { return static_cast<double>(bytes) / size; };
  fmt::print("{:26}{}    kept\n", what, counted ? " forward  backward" : "");
  for (const Passes& passes : all) {
    passes.forward(), passes.backward();  // what is made once, as gradients of weights
    const int64_t before = in_use();
    traffic = {};
    passes.forward();
    const int64_t forward = traffic.bytes(), kept = in_use() - before + x.nbytes();
    passes.backward();
    fmt::print("{:26}", passes.name);
    if (counted)
      fmt::print("{:8.1f}{:10.1f}", tensors(forward), tensors(traffic.bytes() - forward));
    fmt::print("{:8.1f}\n", tensors(kept));
  }
}

/// The fastest of each, which take turns: what disturbs the machine for a while disturbs them all.
void print_times(const char* what, const std::vector<Passes>& all, int rounds) {
  std::vector<std::array<double, 2>> ms(all.size(), {1e9, 1e9});
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < all.size(); ++i) {
      ms[i][0] = std::min(ms[i][0], 1e3 * bench::seconds_of(all[i].forward));
      ms[i][1] = std::min(ms[i][1], 1e3 * bench::seconds_of(all[i].backward));
    }
  }
  fmt::print("\n{:26} forward  backward  together\n", what);
  for (size_t i = 0; i < all.size(); ++i) {
    const auto [forward, backward] = ms[i];
    const double share = (forward + backward) / (ms[0][0] + ms[0][1]);
    fmt::print("{:26}{:8.1f}{:10.1f}{:9.0f}%\n", all[i].name, forward, backward, 100 * share);
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("What a training step moves, keeps and takes");
  int threads = 1, rounds = 9;
  int64_t images = 64;
  bool only_bytes = false;
  app.add_option("--threads", threads, "[1]")->check(CLI::PositiveNumber);
  app.add_option("--rounds", rounds, "Turns that they take [9]")->check(CLI::PositiveNumber);
  app.add_option("--images", images, "[64]")->check(CLI::PositiveNumber);
  app.add_flag("--bytes", only_bytes, "Only what is the same on all machines");
  CLI11_PARSE(app, argc, argv);
  try {
    check(isa_enabled(kVectorIsa), "quern_step", "expected a CPU with AVX2");
    set_num_threads(threads);
    const Tensor x = numbers({images * kSize * kSize, kChannels}, 1, 0);
    Tensor pictures =
        raw::permute(raw::reshape(x, {images, kSize, kSize, kChannels}), {0, 3, 1, 2});
    pictures.requires_grad_();  // and channels last
    const std::vector<Passes> steps{passes_of<ConvolutionsAlone>("the convolutions alone", x),
                                    passes_of<ThreePasses>("0 three passes", x),
                                    passes_of<MomentsInEpilogue>("1 moments in the epilogue", x),
                                    passes_of<NormalisedByReader>("2 normalised by the reader", x)};
    const std::vector<Passes> blocks{passes_of("op by op", op_by_op, pictures),
                                     passes_of("3 each as one op", as_one_op, pictures)};
    print_bytes("tensors read and written", steps, x, true);
    fmt::print("\n");
    print_bytes("tensors, 4 residual blocks", blocks, x, false);
    if (only_bytes) return 0;
    print_times("ms", steps, rounds);
    print_times("ms, 4 residual blocks", blocks, rounds);
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 1;
  }
}
