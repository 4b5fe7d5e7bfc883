// Saving and loading where memory ends at the n-th request, for all n: a file or a model is as
// before or as after it, and nothing is leaked.
#include <doctest/doctest.h>

#include <functional>
#include <new>
#include <utility>

#include "faults.h"
#include "gradcheck_helper.h"
#include "quern/nn/nn.h"
#include "quern/nn/safetensors.h"
#include "quern/ops/pack_cache.h"
#include "quern/optim/adamw.h"
#include "quern/tensor/random.h"
#include "temporary_folder.h"

using namespace quern;
using quern::testing::TemporaryFolder;
using test::Fault, test::live_blocks, test::same_bits;

namespace {

struct Net : nn::Module {
  nn::Conv2d& conv = register_module("conv", nn::Conv2d(3, 40, 5));
  nn::BatchNorm2d& norm = register_module("norm", nn::BatchNorm2d(40));
  nn::Linear& head = register_module("head", nn::Linear(200, 130));  // too large for a small block
  explicit Net(double value) {
    for (const auto& [name, tensor] : state_dict()) raw::fill_(tensor, value);
  }
};

bool all_are(const TensorDict& dict, double value) {
  for (const auto& [name, tensor] : dict)
    if (!same_bits(tensor, full(tensor.shape(), value, tensor.dtype()))) return false;
  return true;
}

/// Runs `change` where memory ends at the n-th request, for all n until it goes through
/// undisturbed; `check`, told whether it threw, after each.
void for_all_faults(const std::function<void()>& change,
                    const std::function<void(bool failed)>& check) {
  for (const bool lasting : {false, true})
    for (auto [n, undisturbed] = std::pair(int64_t{1}, false); !undisturbed; ++n) {
      CAPTURE(lasting);
      CAPTURE(n);
      bool failed = false;
      empty_cache();
      const int64_t blocks = live_blocks(), in_use = memory_stats().in_use;
      {
        const Fault fault(n, lasting);
        try {
          change();
        } catch (const std::bad_alloc&) {
          failed = true;
        } catch (const Error&) {
          failed = true;
        }
        undisturbed = fault.requests() < n;
      }
      empty_cache();
      CHECK(live_blocks() == blocks);
      CHECK(memory_stats().in_use == in_use);
      check(failed);
    }
}

}  // namespace

TEST_CASE("memory ends while a file is saved") {
  const TemporaryFolder folder;
  const std::string path = folder / "net.safetensors";
  const Net old_net(1), new_net(2);
  const TensorDict old_state = old_net.state_dict(), new_state = new_net.state_dict();
  save_safetensors(path, new_state);
  const std::string new_file = folder.read("net.safetensors");
  save_safetensors(path, old_state);
  const std::string old_file = folder.read("net.safetensors");
  for_all_faults([&] { save_safetensors(path, new_state); },
                 [&](bool failed) {
                   CHECK(folder.count() == 1);
                   CHECK(folder.read("net.safetensors") == (failed ? old_file : new_file));
                   if (!failed) save_safetensors(path, old_state);
                 });
}

TEST_CASE("memory ends while a file is loaded") {
  const TemporaryFolder folder;
  const std::string path = folder / "net.safetensors";
  save_safetensors(path, Net(3).state_dict());
  bool right = false;
  for_all_faults([&] { right = all_are(load_safetensors(path), 3); },
                 [&](bool failed) { CHECK((failed || right)); });
}

TEST_CASE("memory ends while a file of torch.save is loaded") {
  size_t tensors = 0;
  for_all_faults([&] { tensors = load_weights(QUERN_GOLDENS "/stream.pth").size(); },
                 [&](bool failed) { CHECK((failed || tensors == 15)); });
}

TEST_CASE("memory ends while a checkpoint is loaded") {
  const TemporaryFolder folder;
  const std::string path = folder / "checkpoint";
  Net net(1);
  optim::AdamW optimizer(net.parameters());
  for (Tensor& p : net.parameters()) p.set_grad(ones_like(p));
  optimizer.step();
  optimizer.zero_grad();
  nn::save_checkpoint(path, Net(2), optimizer, {{{"extra", ones({3})}}, {{"key", "value"}}});
  nn::load_checkpoint(path, net, optimizer);  // so that there is all that a load leaves
  for (const auto& [name, tensor] : net.state_dict()) raw::fill_(tensor, 1);
  for_all_faults([&] { nn::load_checkpoint(path, net, optimizer); },
                 [&](bool failed) {
                   CHECK(all_are(net.state_dict(), failed ? 1 : 2));
                   for (const auto& [name, tensor] : net.state_dict()) raw::fill_(tensor, 1);
                 });
}

TEST_CASE("memory ends while a table of rows is opened and flushed") {
  const TemporaryFolder folder;
  const std::string path = folder / "t";
  const auto flush = [&](double value) {
    nn::RowTable table = nn::RowTable::open(path, {.rows = 700, .width = 8, .states = 1});
    for (const Tensor& t : {table.weight(), table.state()[0]}) raw::fill_(t, value);
    table.flush();
  };
  flush(1);
  for_all_faults([&] { flush(2); },
                 [&](bool failed) {
                   const nn::RowTable table = nn::RowTable::open(path);
                   CHECK(same_bits(table.weight(), full({700, 8}, failed ? 1 : 2)));
                   CHECK(same_bits(table.state()[0], full({700, 8}, failed ? 1 : 2)));
                   CHECK(folder.count() == 2);
                   if (!failed) raw::fill_(table.weight(), 1), raw::fill_(table.state()[0], 1);
                   if (!failed) nn::RowTable(table).flush();
                 });
}

TEST_CASE("memory ends while a model is loaded") {
  Net net(1);
  const Net source(2);
  const TensorDict from = source.state_dict();
  for_all_faults([&] { net.load_state_dict(from); },
                 [&](bool failed) {
                   CHECK(all_are(net.state_dict(), failed ? 1 : 2));
                   for (const auto& [name, tensor] : net.state_dict()) raw::fill_(tensor, 1);
                 });
}

TEST_CASE("memory ends while an optimizer is saved and loaded") {
  const Net net(1);
  optim::AdamW optimizer(net.parameters());
  const auto step = [&] {
    for (Tensor& p : net.parameters()) p.set_grad(ones_like(p));
    optimizer.step();
    optimizer.zero_grad();
  };
  const auto same = [](const TensorDict& a, const TensorDict& b) {
    for (const auto& [name, tensor] : a)
      if (!same_bits(tensor, b.at(name))) return false;
    return a.size() == b.size();
  };
  step();
  const TensorDict first = optimizer.state_dict();
  step();
  const TensorDict second = optimizer.state_dict();
  bool right = false;
  for_all_faults([&] { right = same(optimizer.state_dict(), second); },
                 [&](bool failed) { CHECK((failed || right)); });
  for_all_faults([&] { optimizer.load_state_dict(first); },
                 [&](bool failed) {
                   CHECK(same(optimizer.state_dict(), failed ? second : first));
                   optimizer.load_state_dict(second);
                 });
}
