// What the graph keeps alive, for how long, and what it says of saved tensors that were changed.
#include "gradcheck_helper.h"
#include "toy_ops.h"

using namespace quern;
using namespace quern::test;

namespace {

constexpr int64_t kElements = 1 << 18;
constexpr int64_t kBytes = kElements * 8;

/// y = x through an op that saves a tensor of kBytes, of its own; `during` is called in its
/// backward.
Tensor saving(
    const Tensor& x, std::function<void()> during = [] {}) {
  return record("saving", raw::alias(x), {x},
                [saved = SavedTensor("saving", empty({kElements}, DType::f64)), during](
                    const Tensor& dy, Needs) -> Tensors {
                  saved.get();
                  during();
                  return {dy};
                });
}

}  // namespace

TEST_CASE("backward frees saved tensors as it passes them") {
  const Tensor x = ones({}, DType::f64).requires_grad_();
  const int64_t before = memory_stats().in_use;
  std::vector<int64_t> held;
  Tensor y = x;
  for (int i = 0; i < 5; ++i)
    y = saving(y, [&] { held.push_back((memory_stats().in_use - before) / kBytes); });
  CHECK((memory_stats().in_use - before) / kBytes == 5);
  SUBCASE("by default") {
    y.backward();
    CHECK(held == std::vector<int64_t>{5, 4, 3, 2, 1});
    CHECK((memory_stats().in_use - before) / kBytes == 0);
  }
  SUBCASE("not with retain_graph") {
    y.backward({}, true);
    CHECK(held == std::vector<int64_t>{5, 5, 5, 5, 5});
    y = Tensor();
    CHECK((memory_stats().in_use - before) / kBytes == 0);
  }
}

TEST_CASE("a node knows whether it may free what it saved while it runs") {
  const Tensor x = ones({}, DType::f64).requires_grad_();
  std::vector<bool> again;
  const Tensor y = record("op", raw::alias(x), {x}, [&](const Tensor& dy, Needs needs) -> Tensors {
    again.push_back(needs.again());
    return {dy};
  });
  y.backward({}, /*retain_graph=*/true);
  y.backward();
  CHECK(again == std::vector<bool>{true, false});
}

TEST_CASE("a gradient is freed once it is passed on") {
  const Tensor x = ones({kElements}, DType::f64).requires_grad_();
  Tensor y = x;
  const int64_t before = memory_stats().in_use;
  int64_t most = 0;
  for (int i = 0; i < 6; ++i)
    y = record("op", raw::alias(x), {y}, [&](const Tensor& dy, Needs) -> Tensors {
      Tensor dx = raw::clone(dy);
      most = std::max(most, memory_stats().in_use - before);
      return {dx};
    });
  y.backward(raw::expand(ones({1}, DType::f64), {kElements}));
  CHECK(most / kBytes == 2);  // dy and dx
  CHECK((memory_stats().in_use - before) / kBytes == 1);
}

TEST_CASE("who saves what can be recomputed keeps no memory") {
  const Tensor x = ones({kElements}, DType::f64).requires_grad_();
  int made = 0;
  const auto make = [&] {
    ++made;
    return full({kElements}, 3, DType::f64);
  };
  Tensor y = full({kElements}, 3, DType::f64);
  y = record(
      "op", y, {x}, [](const Tensor& dy, Needs) -> Tensors { return {dy}; }, GradDType::of_output,
      Recompute::of(y, make));
  const auto in_use = [before = memory_stats().in_use] {
    return (memory_stats().in_use - before) / kBytes;
  };
  SavedTensor a("op", y), b("op", y);
  CHECK(a.depth() == 1);
  CHECK(SavedTensor("op", x).depth() == 0);
  SUBCASE("it is made once, for all who saved it") {
    y = Tensor();
    CHECK(in_use() == -1);
    CHECK(values(a.get())[0] == 3);
    CHECK(b.get().storage() == a.get().storage());
    CHECK(a.get().shape() == Shape{kElements});
    CHECK(made == 1);
    CHECK(in_use() == 0);
    a = b = SavedTensor();
    CHECK(in_use() == -1);
  }
  SUBCASE("it is not made while someone holds it") {
    CHECK(a.get().storage() == y.storage());
    CHECK(made == 0);
  }
  SUBCASE("a change in place is not seen by those who saved it before, only by those after") {
    raw::fill_(y, 7);
    const SavedTensor c("op", y);
    CHECK(values(a.get())[0] == 3);
    CHECK(values(c.get())[0] == 7);
    CHECK(made == 1);
  }
  SUBCASE("once its node is released it is saved as it is") {
    y.backward(ones_like(y));
    const SavedTensor c("op", y);
    y = Tensor();
    CHECK(values(c.get())[0] == 3);
    CHECK(made == 0);
  }
}

TEST_CASE("a sum of gradients takes no third buffer") {
  const Tensor x = ones({kElements}, DType::f64).requires_grad_();
  const Tensor given = ones({1}, DType::f64);
  const auto fresh = [&] {
    return record("op", raw::alias(x), {x},
                  [](const Tensor& dy, Needs) -> Tensors { return {raw::clone(dy)}; });
  };
  const Tensor y = add(fresh(), fresh());
  const int64_t before = memory_stats().in_use;
  reset_peak_memory_stats();
  y.backward(raw::expand(given, {kElements}));
  CHECK((memory_stats().peak - before) / kBytes == 2);
  CHECK(values(x.grad())[0] == 2);
}

TEST_CASE("a graph keeps what was saved and nothing else") {
  const Tensor x = ones({}, DType::f64).requires_grad_();
  const int64_t before = memory_stats().in_use;
  Tensor y;
  {
    const Tensor large =
        record("op", empty({kElements}, DType::f64), {x},
               [](const Tensor&, Needs) -> Tensors { return {ones({}, DType::f64)}; });
    y = record("op", ones({}, DType::f64), {large},
               [](const Tensor&, Needs) -> Tensors { return {ones({kElements}, DType::f64)}; });
  }
  CHECK((memory_stats().in_use - before) / kBytes == 0);
  y.backward();
  CHECK(x.grad().item() == 1);
}

TEST_CASE("nothing is kept without recording") {
  const int64_t before = memory_stats().in_use;
  const Tensor x = ones({}, DType::f64);
  const Tensor y = saving(x);
  CHECK((memory_stats().in_use - before) / kBytes == 0);
}

TEST_CASE("a node may save its own output") {
  const Tensor x = leaf({3}, 1);
  std::weak_ptr<Storage> storage;
  {
    const Tensor value = zip(x, x, [](double a, double) { return std::exp(a); });
    const Tensor y = record("exp", value, {x},
                            [y = SavedTensor("exp", value)](const Tensor& dy, Needs) -> Tensors {
                              return {zip(dy, y.get(), std::multiplies<>())};
                            });
    storage = y.storage();
  }
  CHECK(storage.expired());
}

TEST_CASE("a saved tensor that was changed in place is an error naming the op") {
  const Tensor x = leaf({2}, 1), w = leaf({2}, 2);
  const Tensor y = sum(mul(x, w));
  SUBCASE("itself") { raw::fill_(w, 3); }
  SUBCASE("through a view") { raw::fill_(raw::slice(w, 0, 0, 1), 3); }
  CHECK_THROWS_WITH_AS(
      y.backward(),
      "[mul] saved tensor f64 [2]: expected version 1, got 2: it was changed in place "
      "after the forward pass",
      Error);
}

TEST_CASE("a change in place of what was not saved does no harm") {
  const Tensor x = ones({}, DType::f64).requires_grad_();
  const Tensor y = scale(x, 2);
  raw::fill_(x, 3);
  y.backward();
  CHECK(x.grad().item() == 2);
}

TEST_CASE("an undefined tensor can be saved") {
  const SavedTensor nothing("op", Tensor());
  CHECK(!nothing.defined());
  CHECK(!nothing.get().defined());
  CHECK(!SavedTensor().defined());
}

TEST_CASE("recipes that hold each other in a long row are freed one by one") {
  const Tensor y = ones({2});
  std::shared_ptr<Recompute> row;
  for (int i = 0; i < 200000; ++i)
    row = Recompute::of(y, [before = std::move(row), y] { return y; });
  const int64_t before = memory_stats().in_use;
  row.reset();
  CHECK(memory_stats().in_use == before);
  CHECK(y.storage().use_count() == 1);
}
